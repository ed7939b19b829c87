//! Runs the program as a user does, briefly: what it measures, what it writes, and how it fails.
//! Alone on the machine, `cargo test -p lock-bench --test quick` takes a minute.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says by a panic what is wrong")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use test_servers::{MySqlFlavour, left_out};

const BOTH: [&str; 2] = ["distlock-caller", "distlock-own"];

#[test]
fn memory_is_measured() {
    let report = quick_run("memory", &[]);
    has_all(&report, "cycle", &BOTH);
    has_all(
        &report,
        "tasks",
        &["distlock-caller", "distlock-own", "distlock-caller-local", "distlock-own-local"],
    );
}

#[test]
fn files_are_measured_and_a_command_that_is_not_there_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        run(folder.path(), "file", &["--runtime", "current_thread", "--distlock", "/nowhere/distlock"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("distlock exec, exec: "), "{said}");
    let report = json(folder.path());
    has_all(&report, "sharing", &BOTH);
    has_all(&report, "exec", &["flock", "true"]);
    let mut aims = report["aims"].as_array().unwrap().iter();
    let aim = aims.find(|aim| aim["aim"] == "exec beside flock around true").unwrap();
    assert_eq!(aim["verdict"], "unknown", "{aim}");
}

#[test]
fn etcd_is_measured_beside_its_contenders() {
    if left_out("etcd").is_none() {
        let all = ["distlock-caller", "distlock-own", "raw-caller", "raw-thread"];
        server_is_measured("etcd", &[], &all, &all);
    }
}

#[test]
fn an_object_store_is_measured_beside_its_requests() {
    server_is_measured("object-store", &[], &["distlock-caller", "distlock-own", "raw-caller"], &BOTH);
}

#[test]
fn redis_is_measured_beside_its_contenders() {
    if left_out("redis").is_none() {
        let ours = ["distlock-caller", "distlock-own", "distlock-sentinel", "distlock-cluster"];
        let all = [&ours[..], &["raw-caller", "raw-thread", "rslock"]].concat();
        server_is_measured("redis", &[], &all, &all);
    }
}

#[test]
fn zookeeper_is_measured_beside_its_contenders() {
    if left_out("zookeeper").is_none() {
        let all = ["distlock-caller", "distlock-own", "raw-caller", "raw-thread", "lock-client"];
        server_is_measured("zookeeper", &[], &all, &["distlock-caller", "distlock-own", "lock-client"]);
    }
}

#[test]
fn postgres_is_measured_beside_its_contenders() {
    if left_out("postgres").is_none() {
        let all = ["distlock-caller", "distlock-own", "raw-caller", "raw-thread", "sqlx"];
        server_is_measured("postgres", &[], &all, &all);
    }
}

#[test]
fn each_mysql_is_measured_beside_its_contenders() {
    for flavour in MySqlFlavour::ALL.into_iter().filter(|flavour| flavour.left_out().is_none()) {
        let all = ["distlock-caller", "distlock-own", "raw-caller", "raw-thread"];
        server_is_measured("mysql", &["--server", flavour.skip_word()], &all, &all);
    }
}

#[test]
fn a_server_that_is_not_there_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), "redis", &["--workload", "cycle", "--url", "redis://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("lock-bench: "), "{said}");
}

fn server_is_measured(subject: &str, more: &[&str], of_cycle: &[&str], of_hand_off: &[&str]) {
    let arguments = [&["--workload", "cycle,handoff", "--runtime", "current_thread"], more].concat();
    let report = quick_run(subject, &arguments);
    has_all(&report, "cycle", of_cycle);
    has_all(&report, "hand_off", of_hand_off);
}

/// Each of the contenders has rows of this workload. Those of distlock have times, unless one client has had all turns of a short round; a
/// peer may never have handed the lock on.
fn has_all(report: &Value, workload: &str, contenders: &[&str]) {
    let rows: Vec<_> =
        report["rows"].as_array().unwrap().iter().filter(|row| row["workload"] == workload).collect();
    for contender in contenders {
        let mut mine = rows.iter().filter(|row| row["contender"] == *contender).peekable();
        assert!(mine.peek().is_some(), "{workload} of {contender}: {rows:?}");
        for row in mine {
            assert_eq!(row["trouble"], Value::Null, "{row}");
            let quantiles =
                ["least", "p50", "p90", "p99", "p999", "most"].map(|name| row["times"][name].as_f64());
            assert!(quantiles.is_sorted(), "{row}");
            let one_had_all = row["clients"] == 2
                && row["grants"].as_array().is_some_and(|rounds| rounds.iter().all(|round| round[0] == 0));
            assert!(!contender.starts_with("distlock") || one_had_all || quantiles[0].is_some(), "{row}");
        }
    }
}

fn quick_run(subject: &str, arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), subject, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("distlock-own") && text.contains("Aims"), "{text}");
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("distlock-own"), "no plot");
    json(folder.path())
}

fn run(folder: &Path, subject: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lock-bench"));
    command.env_remove("LOCK_BENCH_URL").args([subject, "--quick"]).args(arguments);
    command.arg("--json").arg(folder.join("report.json")).arg("--html").arg(folder.join("report.html"));
    command.output().unwrap()
}

fn json(folder: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder.join("report.json")).unwrap()).unwrap()
}
