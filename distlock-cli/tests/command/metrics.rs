//! The file of `--metrics-file`.

use std::collections::BTreeSet;
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
    assert_has(&file, "# TYPE distlock_acquire_wait_seconds histogram");
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
    let bucket = r#"distlock_acquire_wait_seconds_bucket{lock="job",backend="file",mode="exclusive",outcome="acquired",le="3600"}"#;
    assert_has(&file, &format!("{bucket} 1"));
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

/// Returns the names of metrics in a text, without what a histogram adds to them.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
    let names = words.filter(|word| word.starts_with("distlock_"));
    names
        .map(|name| {
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
        })
        .collect()
}

/// An alert on a metric that is not there never fires.
#[test]
fn alerts_dashboard_and_the_page_of_metrics_name_what_there_is() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("job.prom");
    let option = format!("--metrics-file={}", file.display());
    assert_code(&sandbox.run(["elect", &option, "job", "--", "true"]), 0, "elect");
    let recorded = fs::read_to_string(&file).unwrap();
    let there = named(&recorded);
    let rules = include_str!("../../../packaging/prometheus/alerts.yml");
    let dashboard = include_str!("../../../packaging/grafana/distlock.json");
    for text in [rules, dashboard, include_str!("../../../packaging/prometheus/tests.yml")] {
        assert!(!named(text).is_empty());
        assert_eq!(named(text).difference(&there).collect::<Vec<_>>(), Vec::<&&str>::new());
    }
    let page = named(include_str!("../../../docs/metrics.md"));
    assert_eq!(page, there, "docs/metrics.md");

    // A dashboard is JSON, and its panels have what they show.
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(panel["targets"][0]["expr"].is_string(), "{panel}");
    }
    // Each alert says what to do.
    let advice = include_str!("../../../docs/operate.md");
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert_eq!(alerts.len(), 5);
    for alert in alerts {
        assert!(advice.contains(&format!("### {alert}\n")), "{alert}");
        let link = format!("docs/operate.md#{}", alert.to_lowercase());
        assert!(rules.contains(&link), "{link}");
    }
}
