//! Readers beside each other, and at most so many at a time: `--shared`, `--limit` and `--permits`, on each backend that has
//! them.

use std::process::{Output, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{PATIENCE, Running, Sandbox, assert_code, lives, said, until};

/// The backends that must have readers and permits. Others refuse them.
const HAVE: [&str; 7] = ["etcd", "file", "mysql", "postgres", "redis", "s3", "zookeeper"];

/// The locks of one backend.
pub(crate) struct Places {
    /// By the scheme of its URL.
    pub(crate) backend: &'static str,
    /// Where a silent client keeps its locks for longer than a test takes.
    pub(crate) calm: Sandbox,
    /// Where it keeps them no longer than necessary.
    pub(crate) brief: Sandbox,
}

impl Places {
    pub(crate) fn of_files() -> Self {
        Self { backend: "file", calm: Sandbox::new(), brief: Sandbox::new() }
    }

    /// Whether the backend has what these options ask for. If it has not, it says so, and need not have it.
    fn have(&self, options: &[&str], cause: &str) -> bool {
        let arguments = [["exec"].as_slice(), options, &["probe", "--", "true"]].concat();
        let output = self.calm.run(arguments);
        if output.status.success() {
            return true;
        }
        assert_code(&output, 64, options);
        assert!(said(&output).contains("the backend does not support it"), "{output:?}");
        assert!(said(&output).contains(cause), "{output:?}");
        assert!(!HAVE.contains(&self.backend), "{} must have it: {output:?}", self.backend);
        false
    }

    pub(crate) fn have_readers(&self) -> bool {
        self.have(&["--shared"], "no read-write locks")
    }

    pub(crate) fn have_permits(&self) -> bool {
        if self.have(&["--limit", "2"], "no semaphores") {
            return true;
        }
        for subcommand in [["status"].as_slice(), &["break", "--yes"]] {
            let output = self.calm.run([subcommand, &["--semaphore", "job"]].concat());
            assert_code(&output, 64, subcommand);
            assert!(said(&output).contains("no semaphores"), "{output:?}");
        }
        false
    }
}

/// A test for each case: `all!(…)` with what makes an `Option` of something that lives as long as the test, and [`Places`].
macro_rules! all {
    ($start:expr) => {
        crate::together::cases!(
            $start,
            [
                readers_are_beside_each_other_and_a_writer_waits,
                a_killed_reader_frees_its_share_and_no_more,
                at_most_so_many_run_at_a_time,
                permits_are_taken_all_or_nothing,
                a_killed_holder_frees_its_permits,
                one_of_several_holders_is_taken_away,
                readers_hold_until_standard_input_closes,
            ]
        );
    };
}
pub(crate) use all;

macro_rules! cases {
    ($start:expr, [$($case:ident),+ $(,)?]) => {
        $(
            #[test]
            fn $case() {
                if let Some((_server, places)) = $start {
                    crate::together::$case(&places);
                }
            }
        )+
    };
}
pub(crate) use cases;

mod files {
    super::all!(Some(((), super::Places::of_files())));
}

/// Runs until there is a file of this name.
fn until_there_is(file: &str) -> String {
    format!("echo ready; while [ ! -e {file} ]; do sleep 0.1; done")
}

fn start(sandbox: &Sandbox, options: &[&str], script: &str) -> Running {
    let mut running = sandbox.exec(options, script);
    assert_eq!(running.output_line(), "ready");
    running
}

fn refused(sandbox: &Sandbox, options: &[&str]) -> Output {
    let output = tried(sandbox, options);
    assert_code(&output, 75, options);
    output
}

fn tried(sandbox: &Sandbox, options: &[&str]) -> Output {
    sandbox.run([["exec", "--no-wait"].as_slice(), options, &["job", "--", "true"]].concat())
}

fn semaphore(sandbox: &Sandbox) -> Value {
    let output = sandbox.run(["status", "--json", "--semaphore", "job"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(sandbox: &Sandbox, options: &[&str]) -> String {
    let output = sandbox.run([["status"].as_slice(), options, &["job"]].concat());
    String::from_utf8(output.stdout).unwrap()
}

fn count(status: &Value, whom: &str) -> usize {
    status[whom].as_array().unwrap().len()
}

fn until_permits_are_waited_for(sandbox: &Sandbox) {
    until("a request waits for permits", || count(&semaphore(sandbox), "waiters") == 1);
}

fn ids(status: &Value) -> Vec<String> {
    let holders = status["holders"].as_array().unwrap();
    holders.iter().map(|holder| holder["id"].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn readers_are_beside_each_other_and_a_writer_waits(places: &Places) {
    if !places.have_readers() {
        return;
    }
    let sandbox = &places.calm;
    let mut readers = [0, 1].map(|_| start(sandbox, &["--shared"], &until_there_is("read")));
    for reader in &readers {
        assert_eq!(reader.event("acquired")["mode"], "shared");
    }
    let mut writer = sandbox.exec(&[], "echo wrote");
    sandbox.until_waiting("job", 1);
    let said = said(&refused(sandbox, &["--shared"]));
    assert!(said.contains("held by ") && said.contains(" is first in line"), "{said}");

    let status = sandbox.status("job");
    assert_eq!(count(&status, "holders"), 2, "{status}");
    for holder in status["holders"].as_array().unwrap() {
        assert_eq!(holder["mode"], "shared", "{status}");
    }
    assert_eq!(status["waiters"][0]["mode"], "exclusive", "{status}");
    let text = text(sandbox, &[]);
    assert_eq!(text.matches("lock \"job\" is shared by ").count(), 2, "{text}");
    assert!(text.contains("\n  1. exclusive: "), "{text}");

    std::fs::write(sandbox.file("read"), "").unwrap();
    assert_eq!(writer.output_line(), "wrote");
    assert_eq!(writer.code(), 0);
    for reader in &mut readers {
        assert_eq!(reader.code(), 0);
    }
    assert_code(&tried(sandbox, &["--shared"]), 0, "after the writer");
}

pub(crate) fn a_killed_reader_frees_its_share_and_no_more(places: &Places) {
    if !places.have_readers() {
        return;
    }
    let sandbox = &places.brief;
    let mut dies = sandbox.exec(&["--shared"], "echo $$; exec sleep 1000");
    let command = dies.pid_line();
    let mut lives_on = start(sandbox, &["--shared"], &until_there_is("read"));
    let mut writer = sandbox.exec(&[], "echo wrote");
    sandbox.until_waiting("job", 1);
    dies.signal(Signal::SIGKILL);
    sandbox.until_status("its share is free", "job", |status| count(status, "holders") == 1);
    assert!(!lives(command) && lives_on.runs());
    assert_eq!(count(&sandbox.status("job"), "waiters"), 1, "the writer waits for the other reader");
    std::fs::write(sandbox.file("read"), "").unwrap();
    assert_eq!(writer.output_line(), "wrote");
    assert_eq!((writer.code(), lives_on.code()), (0, 0));
}

pub(crate) fn at_most_so_many_run_at_a_time(places: &Places) {
    if !places.have_permits() {
        return;
    }
    let sandbox = &places.calm;
    let limit = ["--limit", "2"];
    let mut first = start(sandbox, &limit, &until_there_is("first"));
    let acquired = first.event("acquired");
    assert_eq!((&acquired["mode"], &acquired["permits"]), (&"permits".into(), &1.into()), "{acquired}");
    assert_eq!(acquired["token"], Value::Null, "a permit fences nothing: {acquired}");
    let mut second = start(sandbox, &limit, &until_there_is("second"));
    assert!(
        said(&refused(sandbox, &limit)).contains("could not acquire semaphore \"job\" at once: held by ")
    );
    let mut third = sandbox.exec(&limit, "echo ${DISTLOCK_TOKEN-none}");
    until_permits_are_waited_for(sandbox);
    let status = semaphore(sandbox);
    assert_eq!((&status["size"], &status["free_permits"]), (&2.into(), &0.into()), "{status}");
    assert_eq!(status["waiters"][0]["permits"], 1, "{status}");
    assert_code(&tried(sandbox, &[]), 0, "the lock of that name is another thing");
    let hint = "(semaphore \"job\" is in use: add --semaphore)\n";
    assert_eq!(text(sandbox, &[]), format!("lock \"job\" is free {hint}"));
    let output = sandbox.run(["break", "--yes", "job"]);
    assert_code(&output, 0, "nobody has the lock");
    assert!(said(&output).ends_with(hint), "{output:?}");

    std::fs::write(sandbox.file("first"), "").unwrap();
    assert_eq!(third.output_line(), "none");
    assert!(second.runs());
    std::fs::write(sandbox.file("second"), "").unwrap();
    assert_eq!([first.code(), second.code(), third.code()], [0; 3]);
    let status = semaphore(sandbox);
    assert_eq!((&status["held"], &status["size"]), (&false.into(), &Value::Null), "{status}");
    assert_eq!(text(sandbox, &["--semaphore"]), "semaphore \"job\" is free\n");
}

pub(crate) fn permits_are_taken_all_or_nothing(places: &Places) {
    if !places.have_permits() {
        return;
    }
    let sandbox = &places.calm;
    let mut large = start(sandbox, &["--limit", "3", "--permits", "2"], &until_there_is("done"));
    assert_eq!(large.event("acquired")["permits"], 2);
    refused(sandbox, &["--limit", "3", "--permits", "2"]);
    assert_code(&tried(sandbox, &["--limit", "3"]), 0, "the third permit");
    let output = tried(sandbox, &["--limit", "4"]);
    assert_code(&output, 64, "another number");
    assert!(said(&output).contains("with 3 permits, not 4"), "{output:?}");
    let status = semaphore(sandbox);
    assert_eq!((&status["size"], &status["free_permits"]), (&3.into(), &1.into()), "{status}");
    assert_eq!(status["holders"][0]["permits"], 2, "{status}");
    let text = text(sandbox, &["--semaphore"]);
    assert!(text.starts_with("semaphore \"job\" has given 2 permits to "), "{text}");
    // The servers of MySQL do not tell of those who wait as other users.
    let not_known = ["not known: waiters of users whom this one may not see\n", ""];
    let rest = not_known[usize::from(places.backend != "mysql")];
    assert!(text.ends_with(&format!("1 of 3 permits are free\n{rest}")), "{text}");
    std::fs::write(sandbox.file("done"), "").unwrap();
    assert_eq!(large.code(), 0);
}

pub(crate) fn a_killed_holder_frees_its_permits(places: &Places) {
    if !places.have_permits() {
        return;
    }
    let sandbox = &places.brief;
    let mut dies = sandbox.exec(&["--limit", "3", "--permits", "2"], "echo $$; exec sleep 1000");
    let command = dies.pid_line();
    let mut lives_on = start(sandbox, &["--limit", "3"], &until_there_is("done"));
    let mut next = sandbox.exec(&["--limit", "3", "--permits", "2"], "echo mine");
    until_permits_are_waited_for(sandbox);
    dies.signal(Signal::SIGKILL);
    assert_eq!(next.output_line(), "mine");
    until("the command ends with distlock", || !lives(command));
    assert!(lives_on.runs());
    std::fs::write(sandbox.file("done"), "").unwrap();
    assert_eq!((next.code(), lives_on.code()), (0, 0));
}

pub(crate) fn one_of_several_holders_is_taken_away(places: &Places) {
    if places.have_readers() {
        one_of_them_is_taken_away(&places.calm, &["--shared"], &[], "a share of lock");
    }
    if places.have_permits() {
        one_of_them_is_taken_away(&places.calm, &["--limit", "3"], &["--semaphore"], "1 permit of semaphore");
    }
}

/// Runs with `options` are taken away with `selection`, and each has this part.
fn one_of_them_is_taken_away(sandbox: &Sandbox, options: &[&str], selection: &[&str], part: &str) {
    let arguments =
        |rest: &[&'static str]| [["break", "--yes"].as_slice(), selection, rest, &["job"]].concat();
    let mut first = start(sandbox, options, &until_there_is("done"));
    let status_of = || {
        let output = sandbox.run([["status", "--json"].as_slice(), selection, &["job"]].concat());
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let first_id = ids(&status_of()).remove(0);
    let mut second = start(sandbox, options, &until_there_is("done"));
    let all = ids(&status_of());
    assert_eq!(all.len(), 2);
    let output = sandbox.run(arguments(&[]));
    assert_code(&output, 64, "which of them");
    for id in &all {
        let line = said(&output).lines().any(|line| line.contains("--holder ") && line.contains(id.as_str()));
        assert!(line, "{id}: {output:?}");
    }
    let output = sandbox.run(arguments(&["--json"]));
    assert_code(&output, 64, "which of them");
    let event: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&event["event"], ids(&event)), (&"several_holders".into(), all));

    let arguments = [["break", "--yes", "--holder", &first_id].as_slice(), selection, &["job"]].concat();
    let output = sandbox.run(arguments.iter().copied());
    assert_code(&output, 0, "the first");
    assert!(said(&output).contains(&format!("took {part} \"job\" from ")), "{output:?}");
    assert_eq!(first.code(), 76);
    assert!(second.runs());
    until("one is left", || ids(&status_of()).len() == 1);
    assert!(!ids(&status_of()).contains(&first_id));
    std::fs::write(sandbox.file("done"), "").unwrap();
    assert_eq!(second.code(), 0);
    std::fs::remove_file(sandbox.file("done")).unwrap();
}

pub(crate) fn readers_hold_until_standard_input_closes(places: &Places) {
    if !places.have_readers() {
        return;
    }
    let sandbox = &places.calm;
    let hold =
        || Running::start(sandbox.distlock(["hold", "--json", "--shared", "job"]).stdin(Stdio::piped()));
    let mut readers = [hold(), hold()];
    for reader in &mut readers {
        assert_eq!(reader.says_acquired()["mode"], "shared");
    }
    let wait = format!("{}s", PATIENCE.as_secs());
    let mut writer = Running::start(&mut sandbox.distlock(["exec", "--wait", &wait, "job", "--", "true"]));
    sandbox.until_waiting("job", 1);
    for reader in &mut readers {
        reader.close_input();
        assert_eq!(reader.code(), 0);
    }
    assert_eq!(writer.code(), 0);
}
