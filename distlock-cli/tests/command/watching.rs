//! `watch`: who gets which lock and who waits, as it happens.

use nix::sys::signal::Signal;
use std::process::Stdio;

use crate::support::{Running, Sandbox};

#[test]
fn each_grant_wait_and_end_is_a_line() {
    let sandbox = Sandbox::new();
    let start = |more: &[&str]| {
        Running::start(&mut sandbox.distlock([&["watch", "--interval", "100ms", "orders/"], more].concat()))
    };
    let (mut watch, mut text) = (start(&["--json"]), start(&[]));
    let _other = sandbox.hold("other");
    let mut first = sandbox.hold("orders/1");
    let mut next = |event: &str, client: &Running| {
        let change = watch.output_event();
        assert_eq!(change["event"], event, "{change}");
        assert_eq!(change["name"], "orders/1");
        assert_eq!(change["client"]["pid"], client.pid().as_raw(), "{change}");
        assert!(humantime::parse_rfc3339(change["time"].as_str().unwrap()).is_ok(), "{change}");
    };
    next("granted", &first);
    let mut hold = sandbox.distlock(["hold", "--json", "orders/1"]);
    let mut second = Running::start(hold.stdin(Stdio::piped()));
    next("waiting", &second);
    first.close_input();
    second.says_acquired();
    next("ended", &first);
    next("granted", &second);
    let line = text.output_line();
    let expected = format!(" UTC lock \"orders/1\" is held by pid {} on ", first.pid());
    assert!(line.contains(&expected), "{line}");
    for mut watch in [watch, text] {
        watch.signal(Signal::SIGINT);
        assert_eq!(watch.code(), 0);
    }
}
