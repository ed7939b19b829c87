//! The table of exit codes, row by row.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use crate::support::{Running, Sandbox, assert_code, bare, said, with_few_descriptors_it_is_70};

#[test]
fn the_commands_own_code_comes_through() {
    let sandbox = Sandbox::new();
    for code in [0, 1, 3, 64, 75, 255] {
        let output = sandbox.run(["exec", "job", "--", "sh", "-c", &format!("exit {code}")]);
        assert_code(&output, code, code);
        assert_eq!(said(&output), "");
    }
}

#[test]
fn a_signal_that_ended_the_command_is_128_and_its_number() {
    let sandbox = Sandbox::new();
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("INT", 130), ("USR1", 138)] {
        let output = sandbox.run(["exec", "job", "--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_code(&output, code, signal);
    }
}

#[test]
fn a_held_lock_exits_with_75_and_names_the_holder() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("job");
    let output = sandbox.run(["exec", "--no-wait", "job", "--", "touch", "ran"]);
    assert_code(&output, 75, "no wait");
    assert!(
        said(&output)
            .contains(&format!("could not acquire lock \"job\" at once: held by pid {}", holder.pid())),
        "{output:?}"
    );

    let begun = Instant::now();
    let output = sandbox.run(["exec", "--wait", "200ms", "job", "--", "touch", "ran"]);
    assert_code(&output, 75, "a wait");
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert!(said(&output).contains("could not acquire lock \"job\" within 200ms"), "{output:?}");

    let output = sandbox.run(["hold", "--no-wait", "job"]);
    assert_code(&output, 75, "hold");
    assert!(!sandbox.file("ran").exists());
}

#[test]
fn the_code_for_that_can_be_chosen() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("job");
    for code in ["0", "1", "9", "255"] {
        let output = sandbox.run(["exec", "--no-wait", "--conflict-exit-code", code, "job", "--", "true"]);
        assert_code(&output, code.parse().unwrap(), code);
    }
}

#[test]
fn a_lost_lock_is_76() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&[], "sleep 1000 & wait");
    job.event("started");
    assert_code(&sandbox.run(["break", "--yes", "job"]), 0, "break");
    assert_eq!(job.code(), 76);
}

#[test]
fn a_backend_that_does_not_answer_is_69() {
    let sandbox = Sandbox::new();
    assert_code(&sandbox.run(["exec", "job", "--", "true"]), 0, "before");
    let gate = fs::File::options().read(true).write(true).open(sandbox.locks().join("gate")).unwrap();
    let gate = Flock::lock(gate, FlockArg::LockExclusive).unwrap();
    let url = format!("file:{}?gate_patience=50ms", sandbox.locks().display());
    for arguments in [["exec", "--no-wait", "job", "true"].as_slice(), &["status", "job"]] {
        let output = bare().arg("--url").arg(&url).args(arguments).output().unwrap();
        assert_code(&output, 69, arguments);
        assert!(said(&output).contains("cannot be reached"), "{output:?}");
    }
    drop(gate);
    assert_code(&sandbox.run(["exec", "job", "--", "true"]), 0, "after");
}

#[test]
fn a_folder_that_others_may_use_is_refused_with_77() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.locks()).unwrap();
    fs::set_permissions(sandbox.locks(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = sandbox.run(["exec", "job", "--", "touch", "ran"]);
    assert_code(&output, 77, "mode 0777");
    assert!(said(&output).contains("access was refused"), "{output:?}");
    assert!(!sandbox.file("ran").exists());
}

#[test]
fn bad_usage_is_64() {
    let sandbox = Sandbox::new();
    let long = "x".repeat(513);
    for arguments in [
        [].as_slice(),
        &["exec"],
        &["exec", "job"],
        &["exec", "job", "--"],
        &["exec", "--wait", "30", "job", "--", "true"],
        &["exec", "--wait", "-1s", "job", "--", "true"],
        &["exec", "--wait", "1s", "--no-wait", "job", "--", "true"],
        &["exec", "--on-lost", "panic", "job", "--", "true"],
        &["exec", "--conflict-exit-code", "256", "job", "--", "true"],
        &["exec", "", "--", "true"],
        &["exec", &long, "--", "true"],
        &["exec", "--shared", "--limit", "2", "job", "--", "true"],
        &["exec", "--limit", "0", "job", "--", "true"],
        &["exec", "--limit", "2", "--permits", "0", "job", "--", "true"],
        &["exec", "--limit", "2", "--permits", "3", "job", "--", "true"],
        &["exec", "--permits", "1", "job", "--", "true"],
        &["exec", "--shared", "--once", "monday", "job", "--", "true"],
        &["exec", "--limit", "2", "--at-least", "1m", "job", "--", "true"],
        &["hold", "--limit", "2", "--permits", "3", "job"],
        &["hold", "--shared", "--limit", "2", "job"],
        &["elect", "--shared", "job", "--", "true"],
        &["elect", "job"],
        &["elect", "--watch"],
        &["elect", "--watch", "job", "--", "true"],
        &["elect", "--value", &"x".repeat(1025), "job", "--", "true"],
        &["frobnicate"],
        &["completions", "cobol"],
    ] {
        let output = sandbox.run(arguments.iter().copied());
        assert_code(&output, 64, arguments);
        assert_ne!(said(&output), "");
    }
}

#[test]
fn a_bad_url_is_64_and_says_what_is_wrong_with_it() {
    for (url, expected) in [
        ("no scheme", "no scheme"),
        ("gopher://host/", "gopher"),
        ("file:relative", "absolute"),
        ("file:/tmp/x?frobnicate=1", "frobnicate"),
        ("file:/tmp/x?poll_interval=soon", "poll_interval"),
    ] {
        let output = bare().args(["exec", "--url", url, "job", "--", "true"]).output().unwrap();
        assert_code(&output, 64, url);
        assert!(said(&output).contains(expected), "{url}: {output:?}");
        assert!(said(&output).contains("--url"), "{url}: {output:?}");
        let output = bare().env("DISTLOCK_URL", url).args(["status", "job"]).output().unwrap();
        assert_code(&output, 64, url);
        assert!(said(&output).contains("DISTLOCK_URL"), "{url}: {output:?}");
    }
}

#[test]
fn a_command_that_is_not_there_is_127_and_one_that_cannot_run_is_126() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.file("data"), "no program").unwrap();
    for (program, code) in [("no-such-command", 127), ("./no-such-file", 127), ("./data", 126), ("/", 126)] {
        let output = sandbox.run(["exec", "job", "--", program]);
        assert_code(&output, code, program);
        assert!(said(&output).contains(program), "{output:?}");
    }
    assert_eq!(sandbox.status("job")["held"], false);
}

#[test]
fn anything_else_is_70() {
    let output = bare()
        .args(["exec", "--url", &format!("file:/tmp/{}", "x".repeat(300)), "job", "true"])
        .output()
        .unwrap();
    assert_code(&output, 70, "a name that the file system does not take");
}

#[test]
fn help_version_and_completions_are_0() {
    for arguments in [["--help"].as_slice(), &["--version"], &["exec", "--help"], &["completions", "bash"]] {
        let output = bare().args(arguments).output().unwrap();
        assert_code(&output, 0, arguments);
        assert!(!output.stdout.is_empty());
    }
    for shell in ["bash", "zsh", "fish"] {
        let output = bare().args(["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        for subcommand in ["exec", "elect", "watch", "hold", "status", "list", "break"] {
            assert!(script.contains(subcommand), "{shell}: {subcommand}");
        }
    }
}

#[test]
fn the_error_is_an_event_for_machines() {
    let sandbox = Sandbox::new();
    let output = sandbox.run(["exec", "--json", "job", "--", "no-such-command"]);
    let last = said(&output).lines().last().unwrap().to_owned();
    assert_code(&output, 127, &last);
    // distlock acquired and released the lock around the attempt.
    let event: serde_json::Value = serde_json::from_str(&last).unwrap();
    assert_eq!((event["event"].as_str(), event["code"].as_u64()), (Some("error"), Some(127)));
}

#[test]
fn too_few_descriptors_are_70_with_the_remedy() {
    let sandbox = Sandbox::new();
    with_few_descriptors_it_is_70(&sandbox, 5..40);
}

#[test]
fn the_help_names_what_is_there_and_requires_nothing_that_is_not_required() {
    for arguments in [["--help"].as_slice(), &["exec", "--help"], &["exec", "-h"], &["status", "--help"]] {
        let help = String::from_utf8(bare().args(arguments).output().unwrap().stdout).unwrap();
        assert_eq!(help.contains("redis"), cfg!(feature = "redis"), "{help}");
        // Help breaks lines at the width of the terminal.
        let words: Vec<_> = help.split_whitespace().collect();
        assert!(words.join(" ").contains("[env: DISTLOCK_URL]"), "{help}");
    }
    let sandbox = Sandbox::new();
    let output = bare().env("DISTLOCK_URL", sandbox.url()).args(["exec", "job"]).output().unwrap();
    assert_code(&output, 64, "no command");
    let usage = said(&output).lines().find(|line| line.starts_with("Usage:")).unwrap().to_owned();
    assert!(!usage.contains("--url"), "{usage}");
    let output =
        bare().env("DISTLOCK_URL", sandbox.url()).args(["exec", "job", "--", "true"]).output().unwrap();
    assert_code(&output, 0, "the variable");
    assert!(sandbox.locks().exists());
}

#[test]
fn a_variable_that_is_no_text_is_64() {
    use std::os::unix::ffi::OsStrExt;
    let url = std::ffi::OsStr::from_bytes(b"file:/\xff");
    let output = bare().env("DISTLOCK_URL", url).args(["status", "job"]).output().unwrap();
    assert_code(&output, 64, "not UTF-8");
    assert!(said(&output).contains("DISTLOCK_URL"), "{output:?}");
}

/// A folder has no server that could be replaced, or whose clients could be held up.
#[test]
fn the_doctor_finds_nothing_in_a_folder() {
    let output = Sandbox::new().run(["doctor"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let checks: Vec<_> = text.lines().map(|line| line["fine     ".len()..][..10].trim()).collect();
    let all = ["connect", "round trip", "lock", "status", "list", "sharing", "slots", "election", "break"];
    assert_eq!(checks, all, "{text}");
    // A busy machine may be slow, which is a warning.
    let is_slow = |line: &str| line.contains("takes longer than") || line.contains("had not heard of it");
    let slow = text.lines().filter(|line| is_slow(line)).count();
    assert!(text.lines().all(|line| line.starts_with("fine ") || is_slow(line)), "{text}");
    assert_code(&output, i32::from(slow > 0), &text);
}

#[test]
fn a_doctor_waits_for_another_one_of_this_machine() {
    let sandbox = Sandbox::new();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let name = format!("distlock-doctor/{}/run", host.trim());
    let mut other = sandbox.hold(&name);
    let mut doctor = Running::start(&mut sandbox.distlock(["doctor"]));
    sandbox.until_waiting(&name, 1);
    other.close_input();
    assert!(doctor.code_at_last() <= 1, "{}", doctor.rest());
}

#[test]
fn man_writes_a_page_of_each_subcommand() {
    let sandbox = Sandbox::new();
    let folder = sandbox.file("pages");
    let man = || bare().arg("man").arg(&folder).output().unwrap();
    assert_code(&man(), 70, "no folder");
    fs::create_dir(&folder).unwrap();
    assert_code(&man(), 0, "a folder");
    for page in ["distlock.1", "distlock-exec.1", "distlock-doctor.1"] {
        let text = fs::read_to_string(folder.join(page)).unwrap();
        assert!(text.contains(".TH distlock") && text.contains(".SH SYNOPSIS"), "{page}: {text}");
    }
}
