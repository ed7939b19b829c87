//! `break` without a terminal; `terminal` tests it with one.

use crate::support::{Sandbox, assert_code, said};

#[test]
fn it_asks_for_a_confirmation_that_suits_scripts() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("job");
    let output = sandbox.run(["break", "job"]);
    assert_code(&output, 64, "without --yes");
    assert!(said(&output).contains("--yes"), "{output:?}");
    assert!(said(&output).contains(&format!("pid {}", holder.pid())), "{output:?}");
    assert_eq!(sandbox.status("job")["held"], true);

    let output = sandbox.run(["break", "--yes", "job"]);
    assert_code(&output, 0, "with --yes");
    assert!(said(&output).contains(&format!("pid {}", holder.pid())), "{output:?}");
    assert_eq!(holder.code(), 76);
    assert_eq!(sandbox.status("job")["held"], false);
}

#[test]
fn it_takes_the_lock_from_the_named_holder_alone() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("job");
    let id = sandbox.status("job")["holders"][0]["id"].as_str().unwrap().to_owned();
    let output = sandbox.run(["break", "--yes", "--json", "--holder", "another-holder", "job"]);
    assert_code(&output, 75, "another holder");
    let event: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(event["event"], "held_by_another");
    assert_eq!(event["holders"][0]["id"], id.as_str());
    assert_eq!(sandbox.status("job")["held"], true);

    let output = sandbox.run(["break", "--yes", "--holder", "another-holder", "job"]);
    assert!(said(&output).contains("look at it with: distlock status job)"), "{output:?}");

    let output = sandbox.run(["break", "--yes", "--json", "--holder", &id, "job"]);
    assert_code(&output, 0, "the holder");
    let event: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (event["event"].as_str(), event["holders"][0]["id"].as_str()),
        (Some("broken"), Some(id.as_str()))
    );
    assert_eq!(holder.code(), 76);
}

#[test]
fn a_free_lock_needs_no_breaking() {
    let sandbox = Sandbox::new();
    let output = sandbox.run(["break", "--yes", "job"]);
    assert_code(&output, 0, "free");
    assert!(said(&output).contains("is not held"), "{output:?}");
}

#[test]
fn it_waits_for_the_command_and_not_for_its_grace() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&["--grace", "1h"], "echo ready; sleep 1000");
    assert_eq!(job.output_line(), "ready");
    assert_code(&sandbox.run(["break", "--yes", "job"]), 0, "the command has ended");
    assert_eq!(job.code(), 76);
    assert_eq!(sandbox.status("job")["held"], false);
}
