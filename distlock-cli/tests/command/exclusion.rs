//! Mutual exclusion, which the command exists for.

use crate::support::{Running, Sandbox, rounds};

#[test]
fn eight_loops_lose_no_increment() {
    const LOOPS: usize = 8;
    let (rounds, sandbox) = (rounds(25), Sandbox::new());
    std::fs::write(sandbox.file("c"), "0\n").unwrap();
    let script = format!(
        "i=0; while [ $i -lt {rounds} ]; do {} --url '{}' exec counter -- sh -c 'n=$(cat c); echo $((n+1)) > c' || exit 1; i=$((i+1)); done",
        env!("CARGO_BIN_EXE_distlock"),
        sandbox.url()
    );
    let mut loops: Vec<_> = (0..LOOPS)
        .map(|_| {
            let mut shell = std::process::Command::new("sh");
            Running::start(
                shell.args(["-c", &script]).current_dir(sandbox.file("")).stdin(std::process::Stdio::null()),
            )
        })
        .collect();
    for running in &mut loops {
        assert_eq!(running.code_at_last(), 0);
    }
    assert_eq!(std::fs::read_to_string(sandbox.file("c")).unwrap(), format!("{}\n", LOOPS * rounds));
}
