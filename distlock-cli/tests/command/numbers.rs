//! Process ids that other processes have later: in a namespace, where a test can choose the next id.

use std::process::{Command, Output};

use crate::support::Sandbox;

/// The functions that all scripts share.
const HELP: &str = r#"
until_is() { until eval "$1"; do sleep 0.1; done; }
is_gone() { test ! -e /proc/$1; }
# Starts a program with this number, in a session and a group that have it as well.
start_as() {
    number=$1; shift
    while :; do
        echo $((number - 1)) > /proc/sys/kernel/ns_last_pid || exit 1
        setsid "$@" &
        test $! = $number && break
        kill -KILL $!
    done
    until_is 'test "$(cut -d" " -f5 /proc/$number/stat)" = $number'
}
"#;

/// The output of a script that starts in a namespace of its own, where `$D` is distlock.
fn in_a_namespace(sandbox: &Sandbox, script: &str) -> String {
    std::fs::write(sandbox.file("help"), HELP).unwrap();
    let output: Output = Command::new("unshare")
        .args(["--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child", "--"])
        .args(["sh", "-c", &format!(". ./help; {script}")])
        .env("D", format!("{} --url {}", env!("CARGO_BIN_EXE_distlock"), sandbox.url()))
        .env_remove("DISTLOCK_URL")
        .current_dir(sandbox.file(""))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "this test makes a namespace of its own: install util-linux and allow user namespaces, or run it as root: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_program_that_has_the_number_of_a_command_that_has_ended_is_left_alone() {
    let sandbox = Sandbox::new();
    std::fs::write(
        sandbox.file("helper"),
        "trap 'echo told >> told' TERM\n(trap '' TERM; exec sleep 1000) &\necho > ready\nwhile :; do wait; done\n",
    )
    .unwrap();
    std::fs::write(sandbox.file("command"), "setsid sh helper &\necho $$ > command-pid\nexec sleep 1000\n")
        .unwrap();
    let status = in_a_namespace(
        &sandbox,
        r#"
        $D exec --grace 10m job -- sh command & distlock=$!
        until_is 'test -s command-pid -a -e ready'
        command=$(cat command-pid)
        $D break --yes job
        until_is 'is_gone $command && test "$(wc -l < told)" = 1'
        start_as $command sleep 1000
        kill -TERM $distlock
        until_is 'test "$(wc -l < told)" = 2'
        kill -KILL $command
        wait $command; echo $?
        "#,
    );
    // The test's SIGKILL ended it, and not the SIGTERM before.
    assert_eq!(status, "137");
}

#[test]
fn a_helper_that_has_the_number_of_a_child_from_before_is_ended() {
    let sandbox = Sandbox::new();
    std::fs::write(
        sandbox.file("command"),
        ". ./help\nuntil_is 'is_gone $1'\nstart_as $1 sleep 1000\necho > ready\nwait\n",
    )
    .unwrap();
    let lives = in_a_namespace(
        &sandbox,
        r#"
        sh -c 'sleep 1000 & echo $! > other; exec $D exec job -- sh command $!' & distlock=$!
        until_is 'test -s other'
        other=$(cat other)
        until_is '$D status job | grep -q "is held"'
        kill -KILL $other
        until_is 'test -e ready'
        $D break --yes job
        wait $distlock
        grep -qs "^State:.[^ZX]" /proc/$other/status && echo lives || echo ended
        "#,
    );
    assert_eq!(lives, "ended");
}
