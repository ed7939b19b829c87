//! The waiters before this one when the lock is free.

use nix::sys::signal::Signal;

use crate::support::{Running, Sandbox, assert_code, last_event, said};

#[test]
fn a_stopped_waiter_that_holds_up_the_queue_is_named_with_what_to_do_about_it() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("job");
    let mut first = Running::start(&mut sandbox.distlock(["exec", "job", "--", "echo", "mine"]));
    sandbox.until_waiting("job", 1);
    sandbox.stop_outside_the_gate(&first);
    holder.close_input();
    assert_eq!(holder.code(), 0);

    for wait in ["--no-wait", "--wait=200ms"] {
        let output = sandbox.run(["exec", wait, "job", "--", "true"]);
        assert_code(&output, 75, wait);
        let first_in_line = format!("it is free, but pid {} on ", first.pid());
        let remedy = format!("is first in line (continue it with kill -CONT {}, or end it)", first.pid());
        assert!(said(&output).contains(&first_in_line) && said(&output).contains(&remedy), "{output:?}");
    }
    let output = sandbox.run(["exec", "--json", "--no-wait", "job", "--", "true"]);
    let event = last_event(&output);
    assert_eq!(event["holders"].as_array().map(Vec::len), Some(0), "{event}");
    let [waiter] = event["waiters"].as_array().unwrap().as_slice() else { panic!("{event}") };
    assert_eq!(waiter["pid"], first.pid().as_raw());
    let status = String::from_utf8(sandbox.run(["status", "job"]).stdout).unwrap();
    assert!(status.contains(", which is stopped"), "{status}");

    first.signal(Signal::SIGCONT);
    assert_eq!(first.output_line(), "mine");
    assert_eq!(first.code(), 0);
}
