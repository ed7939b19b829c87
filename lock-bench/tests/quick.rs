//! Runs the program as a user would: quickly, against a server of its own; and checks what it writes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says by a panic what is wrong

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use test_servers::{MySqlFlavour, left_out};

#[test]
fn a_quick_run_tells_of_every_contender_in_all_three_forms() {
    let Some((folder, output)) = quick_run("redis", &["--workload", "cycle,handoff"]) else { return };
    assert_success(&output);

    let report = json(folder.path());
    let contenders = [
        "distlock-caller",
        "distlock-own",
        "raw-caller",
        "raw-thread",
        "raw-scripts",
        "rslock",
        "distributed-lock",
    ];
    assert_eq!(texts(&report["contenders"], "id"), contenders);
    for kind in ["current_thread", "multi_thread"] {
        let rows = |part: &str| -> Vec<Value> {
            let rows = report[part].as_array().unwrap().iter();
            rows.filter(|row| row["runtime"] == kind).cloned().collect()
        };
        let cycle = rows("cycle");
        assert_eq!(
            cycle.iter().map(|row| row["contender"].as_str().unwrap()).collect::<Vec<_>>(),
            contenders
        );
        for row in &cycle {
            assert_eq!(row["trouble"], Value::Null, "{row}");
            assert!(
                is_sound(&row["cycle"]) && is_sound(&row["acquire"]) && is_sound(&row["release"]),
                "{row}"
            );
            assert_eq!(row["rounds"].as_array().unwrap().len(), 2, "{row}");
            // Commands of other clients would be counted too; fewer are an error.
            assert!(row["client_commands_per_cycle"].as_f64().unwrap() >= 1.9, "{row}");
        }
        for row in rows("hand_off") {
            assert_eq!(row["trouble"], Value::Null, "{row}");
            let clients = row["clients"].as_u64().unwrap();
            for grants in row["fairness"].as_array().unwrap() {
                assert_eq!(grants.as_array().unwrap().len() as u64, clients, "{row}");
            }
            if row["contender"].as_str().unwrap().starts_with("distlock") {
                assert!(row["sections"].as_u64().unwrap() > 0 && is_sound(&row["times"]), "{row}");
            }
        }
    }

    let judged = report["aims"].as_array().unwrap();
    assert!(judged.iter().any(|aim| aim["verdict"] == "met" || aim["verdict"] == "missed"), "{judged:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for contender in contenders {
        assert!(text.contains(contender), "{text}");
    }
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg"), "no page");
    assert!(
        !page.contains("src=") && !page.contains("href=") && !page.contains("url("),
        "it needs something else"
    );
}

#[test]
fn readers_and_permits_are_measured() {
    for server in ["redis", "zookeeper", "mysql", "postgres"] {
        let own = ["--workload", "sharing", "--engine", "own", "--runtime", "multi_thread"];
        let one = if server == "mysql" { own_flavour() } else { Some(Vec::new()) };
        let Some(one) = one else { continue };
        let arguments: Vec<_> = own.into_iter().chain(one).collect();
        let Some((folder, output)) = quick_run(server, &arguments) else { continue };
        assert_success(&output);
        shares_are_sound(server, &json(folder.path()));
    }
}

/// One server of those that a run at MySQL would measure.
fn own_flavour() -> Option<Vec<&'static str>> {
    let flavour = MySqlFlavour::ALL.into_iter().find(|flavour| flavour.left_out().is_none())?;
    Some(vec!["--server", flavour.skip_word()])
}

fn shares_are_sound(server: &str, report: &Value) {
    let rows = report["sharing"].as_array().unwrap();
    let ours: Vec<_> = rows.iter().filter(|row| row["contender"] == "distlock-own").collect();
    for row in rows {
        assert_eq!(row["trouble"], Value::Null, "{server}: {row}");
        assert!(row["sections"].as_u64().unwrap() > 0 && is_sound(&row["waits"]), "{server}: {row}");
    }
    if server == "zookeeper" && left_out("curator").is_none() {
        let curator = rows.iter().filter(|row| row["contender"] == "curator");
        assert_eq!(curator.count(), ours.len(), "{report}");
    }
    let scenarios =
        |of: &str| ours.iter().filter(|row| row["scenario"].as_str().unwrap().starts_with(of)).count();
    assert_eq!(["lock", "read", "mixed", "permits"].map(scenarios), [2, 3, 2, 2], "{server}");
    let mut aims = report["aims"].as_array().unwrap().iter();
    let aim = aims.find(|aim| aim["aim"] == "an uncontended read beside a lock").unwrap();
    assert!(aim["value"].as_f64().is_some(), "{aim}");
}

#[test]
fn tasks_of_one_client_are_measured() {
    for server in ["memory", "redis"] {
        let arguments = ["--workload", "tasks", "--runtime", "current_thread"];
        let Some((folder, output)) = quick_run(server, &arguments) else { continue };
        assert_success(&output);
        let report = json(folder.path());
        let rows = report["tasks"].as_array().unwrap();
        let local = rows.iter().filter(|row| row["contender"].as_str().unwrap().ends_with("-local"));
        assert_eq!((rows.len(), local.count()), (12, 6), "{server}");
        for row in rows {
            // A backend that cannot hand over says so.
            if row["trouble"].as_str().is_some_and(|trouble| trouble.contains("reserve fencing tokens")) {
                continue;
            }
            assert_eq!(row["trouble"], Value::Null, "{server}: {row}");
            assert!(row["sections"].as_u64().unwrap() > 0 && is_sound(&row["times"]), "{server}: {row}");
        }
        for aim in
            ["hand-off, 64 tasks of one client", "hand-off with the most tasks of one client beside 100"]
        {
            let mut aims = report["aims"].as_array().unwrap().iter();
            let aim =
                aims.find(|judged| judged["aim"] == aim && judged["contender"] == "distlock-own").unwrap();
            assert!(aim["value"].as_f64().is_some(), "{server}: {aim}");
        }
    }
}

#[test]
fn files_are_measured_and_a_command_that_is_not_there_is_said() {
    let arguments = ["--runtime", "current_thread", "--engine", "caller", "--distlock", "/nowhere/distlock"];
    let Some((folder, output)) = quick_run("file", &arguments) else { return };
    assert_success(&output);
    let report = json(folder.path());
    for part in ["cycle", "hand_off", "sharing"] {
        let rows = report[part].as_array().unwrap();
        assert!(!rows.is_empty(), "{part}");
        for row in rows {
            assert_eq!(row["trouble"], Value::Null, "{part}: {row}");
        }
    }
    let [ours, flock, alone] = report["exec"].as_array().unwrap().as_slice() else { panic!("{report}") };
    assert!(ours["trouble"].as_str().is_some(), "{ours}");
    for row in [flock, alone] {
        assert_eq!((&row["trouble"], row["rounds"].as_array().unwrap().len()), (&Value::Null, 2), "{row}");
    }
    let mut aims = report["aims"].as_array().unwrap().iter();
    let aim = aims.find(|aim| aim["aim"] == "exec beside flock around true").unwrap();
    assert_eq!(aim["verdict"], "unknown", "{aim}");
}

#[test]
fn what_costs_while_nothing_happens_is_measured_in_a_process_of_its_own() {
    let arguments = ["--workload", "many,waiting", "--engine", "caller"];
    let Some((folder, output)) = quick_run("redis", &arguments) else { return };
    assert_success(&output);

    let report = json(folder.path());
    let [many] = report["many"].as_array().unwrap().as_slice() else { panic!("{report}") };
    assert_eq!((&many["contender"], &many["trouble"]), (&"distlock-caller".into(), &Value::Null), "{many}");
    assert!(many["bytes_per_hold"].as_f64().unwrap() > 0.0, "{many}");
    assert_eq!(many["connections"], 1, "{many}");
    // In one interval all holds are renewed once; after a stall some may be renewed in the next one.
    assert!(many["load"]["client_commands_per_second"].as_f64().unwrap() > 0.0, "{many}");

    let [waiting] = report["waiting"].as_array().unwrap().as_slice() else { panic!("{report}") };
    assert_eq!(waiting["trouble"], Value::Null, "{waiting}");
    assert_eq!(waiting["connections"], waiting["waiters"], "{waiting}");
    assert!(report["cycle"].as_array().unwrap().is_empty(), "it was not asked for");
}

#[test]
fn a_quick_run_at_zookeeper_counts_the_requests_of_every_contender() {
    let mut contenders = vec!["distlock-caller", "distlock-own", "raw-caller", "raw-thread", "lock-client"];
    if left_out("curator").is_none() {
        contenders.push("curator");
    }
    let only = contenders.join(",");
    let arguments = ["--workload", "cycle,handoff", "--runtime", "multi_thread", "--contender", &only];
    let Some((folder, output)) = quick_run("zookeeper", &arguments) else { return };
    assert_success(&output);

    let report = json(folder.path());
    for part in ["cycle", "hand_off", "requests"] {
        let rows = report[part].as_array().unwrap();
        for contender in &contenders {
            let mut mine = rows.iter().filter(|row| row["contender"] == *contender).peekable();
            let is_lock = !contender.starts_with("raw");
            assert!(mine.peek().is_some() || part == "hand_off" && !is_lock, "{part} of {contender}");
            for row in mine {
                assert_eq!(row["trouble"], Value::Null, "{row}");
            }
        }
    }
    for row in report["cycle"].as_array().unwrap() {
        assert!(is_sound(&row["cycle"]), "{row}");
    }
    for row in report["requests"].as_array().unwrap() {
        // A raw lock has one node, and ours one for each kind of lock that it excludes.
        let requests = |kind: &str| row["per_section"][kind].as_f64().unwrap_or_default();
        let deletions = requests("delete") + requests("multi(delete…)");
        assert_eq!(Some(deletions.round()), Some(1.0), "{row}");
    }
    // Whether it is met depends on the machine: a client that lost contact lists again. The costs of the backend have a test there.
    let aims = report["aims"].as_array().unwrap();
    let listings = aims.iter().find(|aim| aim["aim"] == "listings for a section at 16").unwrap();
    let value = listings["value"].as_f64().unwrap();
    assert!(value > 0.5, "each client but the first finds the lock held: {listings}");
    assert_eq!(listings["verdict"], if value <= 1.0 { "met" } else { "missed" }, "{listings}");
}

#[test]
fn holds_and_waiters_at_zookeeper_are_counted_by_their_requests() {
    let arguments = ["--workload", "many,waiting", "--engine", "own"];
    let Some((folder, output)) = quick_run("zookeeper", &arguments) else { return };
    assert_success(&output);

    let report = json(folder.path());
    let [many] = report["many"].as_array().unwrap().as_slice() else { panic!("{report}") };
    assert_eq!((&many["connections"], &many["trouble"]), (&1.into(), &Value::Null), "{many}");
    assert!(many["load"]["client_commands_per_second"].as_f64().unwrap() > 0.0, "{many}");
    let [waiting] = report["waiting"].as_array().unwrap().as_slice() else { panic!("{report}") };
    assert_eq!(waiting["trouble"], Value::Null, "{waiting}");
    assert_eq!(waiting["connections"], waiting["waiters"], "{waiting}");
}

#[test]
fn a_quick_run_at_mysql_measures_one_server_after_the_other() {
    let flavours = MySqlFlavour::ALL.into_iter().filter(|flavour| flavour.left_out().is_none());
    let servers: Vec<_> = flavours.map(MySqlFlavour::skip_word).collect();
    let contenders =
        ["distlock-caller", "distlock-own", "raw-caller", "raw-thread", "raw-token-caller", "raw-direct"];
    let (only, server) = (contenders.join(","), servers.join(","));
    let arguments = ["--runtime", "current_thread", "--contender", &only, "--server", &server];
    let Some((folder, output)) = quick_run("mysql", &arguments) else { return };
    assert_success(&output);

    for server in &servers {
        // A single report has the name that the user gave; each of several reports has its server in its name.
        let name = if servers.len() > 1 { format!("report.{server}.json") } else { "report.json".to_owned() };
        let text = std::fs::read_to_string(folder.path().join(&name)).unwrap();
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(texts(&report["cycle"], "contender"), contenders, "{name}");
        for part in ["cycle", "hand_off", "many", "waiting"] {
            for row in report[part].as_array().unwrap() {
                assert_eq!(row["trouble"], Value::Null, "{name}: {row}");
            }
        }
        for row in report["cycle"].as_array().unwrap() {
            // Commands of other clients would be counted too; fewer are an error.
            assert!(row["client_commands_per_cycle"].as_f64().unwrap() >= 1.9, "{name}: {row}");
            assert!(is_sound(&row["cycle"]), "{name}: {row}");
        }
        for row in report["hand_off"].as_array().unwrap() {
            let contender = row["contender"].as_str().unwrap();
            assert!(["distlock-caller", "distlock-own", "raw-caller", "raw-thread"].contains(&contender));
            assert!(row["sections"].as_u64().unwrap() > 0, "{name}: {row}");
        }
        for row in report["many"].as_array().unwrap() {
            // 600 holds, at most 256 on a connection.
            assert!((3..=5).contains(&row["connections"].as_u64().unwrap()), "{name}: {row}");
            assert!(row["load"]["client_commands_per_second"].as_f64().unwrap() > 0.0, "{name}: {row}");
        }
        for row in report["waiting"].as_array().unwrap() {
            assert!(row["connections"].as_u64() >= row["waiters"].as_u64(), "{name}: {row}");
        }
    }
}

#[test]
fn a_quick_run_at_postgres_measures_every_contender() {
    let contenders = [
        "distlock-caller",
        "distlock-own",
        "raw-caller",
        "raw-thread",
        "raw-token-caller",
        "raw-token-thread",
        "raw-direct",
        "sqlx",
    ];
    let only = contenders.join(",");
    let arguments = ["--runtime", "current_thread", "--contender", &only];
    let Some((folder, output)) = quick_run("postgres", &arguments) else { return };
    assert_success(&output);

    let report = json(folder.path());
    assert_eq!(texts(&report["cycle"], "contender"), contenders);
    for part in ["cycle", "hand_off", "many", "waiting"] {
        for row in report[part].as_array().unwrap() {
            assert_eq!(row["trouble"], Value::Null, "{part}: {row}");
        }
    }
    for row in report["cycle"].as_array().unwrap() {
        // Commands of other clients would be counted too; fewer are an error.
        assert!(row["client_commands_per_cycle"].as_f64().unwrap() >= 1.9, "{row}");
        assert!(is_sound(&row["cycle"]), "{row}");
    }
    for row in report["hand_off"].as_array().unwrap() {
        assert!(row["sections"].as_u64().unwrap() > 0, "{row}");
    }
    for row in report["many"].as_array().unwrap() {
        // 600 holds, at most 320 on a connection.
        assert!((2..=4).contains(&row["connections"].as_u64().unwrap()), "{row}");
    }
    for row in report["waiting"].as_array().unwrap() {
        assert!(row["connections"].as_u64() >= row["waiters"].as_u64(), "{row}");
    }
}

#[test]
fn a_run_says_what_differs_from_an_earlier_one() {
    let arguments = ["--workload", "cycle,handoff", "--runtime", "current_thread", "--rounds", "3"];
    let contenders = |names: &'static str| ["--contender", names];
    let first = [&arguments[..], &contenders("distlock-caller,distlock-own,raw-caller,raw-thread")].concat();
    let Some((before, output)) = quick_run("redis", &first) else { return };
    assert_success(&output);

    // As if one engine had been much faster then, and the other much slower.
    let mut report = json(before.path());
    for (contender, factor) in [("distlock-caller", 1e-6), ("distlock-own", 1e6)] {
        let rows = report["cycle"].as_array_mut().unwrap().iter_mut();
        let row = rows.filter(|row| row["contender"] == contender).last().unwrap();
        for round in row["rounds"].as_array_mut().unwrap() {
            *round = (round.as_f64().unwrap() * factor).into();
        }
    }
    let path = before.path().join("baseline.json");
    std::fs::write(&path, report.to_string()).unwrap();

    let baseline = ["--lease", "11s", "--baseline", path.to_str().unwrap()];
    let names = contenders("distlock-caller,distlock-own,raw-caller,raw-thread,rslock");
    let second = [&arguments[..], &names, &baseline];
    let Some((now, output)) = quick_run("redis", &second.concat()) else { return };
    assert_success(&output);

    let comparison = &json(now.path())["comparison"];
    let changes = comparison["changes"].as_array().unwrap();
    for (contender, difference) in [("distlock-caller", "slower"), ("distlock-own", "faster")] {
        let is_it = |change: &&Value| {
            change["contender"] == contender && change["what"].as_str().unwrap().starts_with("cycle")
        };
        let change = changes.iter().find(is_it).unwrap();
        assert_eq!(change["difference"], difference, "{change}");
    }
    assert_eq!(comparison["only_now"], serde_json::json!(["contender rslock"]), "{comparison}");
    let settings = comparison["settings"].as_array().unwrap();
    assert!(settings.contains(&"lease_ms 12000 → 11000".into()), "{comparison}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("SLOWER") && text.contains("only in this run: contender rslock"), "{text}");
    let page = std::fs::read_to_string(now.path().join("report.html")).unwrap();
    for run in ["before: on a current_thread runtime", "now: on a current_thread runtime"] {
        assert!(page.contains(run), "no chart {run:?}");
    }
}

#[test]
fn a_baseline_of_something_else_is_an_error_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let of_zookeeper = r#"{ "format": 1, "subject": "ZooKeeper" }"#;
    let of_later = r#"{ "format": 99, "subject": "Redis" }"#;
    for (text, reason) in [
        (None, "cannot read the baseline"),
        (Some("{}"), "it is no report"),
        (Some(of_zookeeper), "it is about ZooKeeper, and this run is about Redis"),
        (Some(of_later), "it has format 99"),
    ] {
        let path = folder.path().join("baseline.json");
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        let mut command = program();
        // Nothing listens there: a run that began would fail with another message.
        command.args(["redis", "--quick", "--url", "redis://127.0.0.1:1", "--baseline"]).arg(&path);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with("lock-bench: ") && text.contains(reason), "{text}");
    }
}

#[test]
fn a_server_that_is_not_there_is_one_line() {
    let output = program().args(["redis", "--quick", "--url", "redis://127.0.0.1:1"]).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.lines().any(|line| line.starts_with("lock-bench: ")), "{text}");
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lock-bench"));
    command.env_remove("LOCK_BENCH_URL");
    command
}

/// Returns `None` when the user has left out this server.
fn quick_run(subject: &str, arguments: &[&str]) -> Option<(tempfile::TempDir, Output)> {
    let is_left_out = match subject {
        "mysql" => MySqlFlavour::ALL.into_iter().all(|flavour| flavour.left_out().is_some()),
        subject => left_out(subject).is_some(),
    };
    if is_left_out {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = program();
    command.args([subject, "--quick"]).args(arguments);
    command.arg("--json").arg(folder.path().join("report.json"));
    command.arg("--html").arg(folder.path().join("report.html"));
    let output = command.output().unwrap();
    Some((folder, output))
}

fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn json(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("report.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn texts<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    list.as_array().unwrap().iter().map(|entry| entry[key].as_str().unwrap()).collect()
}

/// Returns whether the quantiles increase, and the curve contains them.
fn is_sound(times: &Value) -> bool {
    let quantiles = ["least", "p50", "p90", "p99", "p999", "most"].map(|name| times[name].as_f64());
    let curve = times["curve"].as_array();
    quantiles.iter().all(Option::is_some)
        && quantiles.is_sorted()
        && quantiles[0] > Some(0.0)
        && curve.is_some_and(|curve| curve.len() > 10)
}
