//! The file of `--metrics-file`.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::support::{Running, Sandbox, assert_code, bare, said};

/// Asserts that the file has this line.
fn assert_has(file: &Path, line: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
}

/// Returns the names of the files beside this one that begin with its name.
fn beside(file: &Path) -> Vec<String> {
    let names = fs::read_dir(file.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    names.filter(|name| name.starts_with(file.file_name().unwrap().to_str().unwrap())).collect()
}

#[test]
fn a_run_leaves_its_metrics_whether_or_not_it_has_the_lock() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("job.prom");
    let option = format!("--metrics-file={}", file.display());
    assert_code(&sandbox.run(["exec", &option, "job", "--", "sh", "-c", "exit 3"]), 3, "exec");
    assert_has(&file, "# TYPE distlock_acquire_wait_seconds summary");
    assert_has(
        &file,
        r#"distlock_acquire_wait_seconds_count{lock="job",backend="file",mode="exclusive",outcome="acquired"} 1"#,
    );
    assert_has(&file, r#"distlock_hold_seconds_count{lock="job",backend="file",mode="exclusive"} 1"#);
    assert_has(&file, r#"distlock_holds{lock="job",backend="file",mode="exclusive"} 0"#);
    assert_has(&file, r#"distlock_lost_total{lock="job",backend="file",mode="exclusive",reason="broken"} 0"#);
    assert_has(
        &file,
        r#"distlock_backend_requests_total{lock="job",backend="file",op="release",result="ok"} 1"#,
    );
    assert_has(&file, r#"distlock_exit_code{lock="job"} 3"#);
    assert_eq!(beside(&file), ["job.prom"]);

    let _holder = sandbox.hold("job");
    assert_code(&sandbox.run(["hold", &option, "--no-wait", "job"]), 75, "hold");
    assert_has(
        &file,
        r#"distlock_acquire_wait_seconds_count{lock="job",backend="file",mode="exclusive",outcome="busy"} 1"#,
    );
    assert_has(&file, r#"distlock_hold_seconds_count{lock="job",backend="file",mode="exclusive"} 0"#);
    assert_has(&file, r#"distlock_exit_code{lock="job"} 75"#);
}

#[test]
fn a_loss_and_a_failure_are_in_the_file() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("job.prom");
    let option = format!("--metrics-file={}", file.display());
    let mut holder =
        Running::start(sandbox.distlock(["hold", "--json", &option, "job"]).stdin(Stdio::piped()));
    holder.says_acquired();
    assert_code(&sandbox.run(["break", "--yes", "job"]), 0, "break");
    assert_eq!(holder.code(), 76);
    assert_has(&file, r#"distlock_lost_total{lock="job",backend="file",mode="exclusive",reason="broken"} 1"#);
    assert_has(&file, r#"distlock_exit_code{lock="job"} 76"#);

    let mut nowhere = bare();
    let output =
        nowhere.args(["--url", "file:/dev/null/nowhere", "exec", &option, "job", "--", "true"]).output();
    let output = output.unwrap();
    let code = output.status.code().unwrap();
    assert_ne!(code, 0);
    assert_has(&file, &format!(r#"distlock_exit_code{{lock="job"}} {code}"#));
}

#[test]
fn a_file_that_cannot_be_written_is_a_warning() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("no such folder").join("job.prom");
    let option = format!("--metrics-file={}", file.display());
    let output = sandbox.run(["exec", &option, "job", "--", "sh", "-c", "exit 3"]);
    assert_code(&output, 3, "exec");
    assert!(said(&output).contains("cannot write the metrics to"), "{}", said(&output));
}

/// In containers each run has the same process id, and one that was killed leaves its file behind.
#[test]
fn what_an_earlier_run_has_left_fails_no_run_and_stays() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("job.prom");
    let option = format!("--metrics-file={}", file.display());
    // Whatever its process id is: the command names the files that it would take, and then distlock writes.
    let leave = "for n in 0 1; do echo left > job.prom.$PPID.$n; done; echo $PPID";
    let output = sandbox.run(["exec", &option, "job", "--", "sh", "-c", leave]);
    assert_code(&output, 0, "exec");
    assert!(!said(&output).contains("cannot write"), "{}", said(&output));
    assert_has(&file, r#"distlock_exit_code{lock="job"} 0"#);
    assert_eq!(beside(&file).len(), 3);
}

#[test]
fn a_file_that_the_collector_would_not_read_is_refused() {
    let sandbox = Sandbox::new();
    let output = sandbox.run(["exec", "--metrics-file", "job.txt", "job", "--", "touch", "ran"]);
    assert_code(&output, 64, "exec");
    assert!(said(&output).contains(".prom") && !sandbox.file("ran").exists(), "{}", said(&output));
}
