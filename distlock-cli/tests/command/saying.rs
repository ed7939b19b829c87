//! The output without a terminal.

use crate::support::{Running, Sandbox, assert_code, said};

#[test]
fn the_log_has_no_colours_in_a_pipe() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.distlock(["exec", "-vv", "job", "--", "true"]);
    let output = command.env_remove("NO_COLOR").env("TERM", "xterm").output().unwrap();
    assert_code(&output, 0, "-vv");
    assert!(said(&output).contains("granted"), "{output:?}");
    assert!(!said(&output).contains('\x1b'), "{output:?}");
}

#[test]
fn a_wait_that_takes_a_while_says_who_holds_the_lock() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("job");
    let mut quiet = Running::start(&mut sandbox.distlock(["exec", "-q", "job", "--", "true"]));
    sandbox.until_waiting("job", 1);
    let mut waiter = Running::start(&mut sandbox.distlock(["exec", "job", "--", "true"]));
    let line = waiter.error_line();
    assert!(line.contains(&format!("waiting for lock \"job\", held by pid {} on ", holder.pid())), "{line}");
    holder.close_input();
    for waiter in [&mut quiet, &mut waiter] {
        assert_eq!(waiter.code(), 0);
        assert_eq!(waiter.error_lines(), [""; 0]);
    }
}
