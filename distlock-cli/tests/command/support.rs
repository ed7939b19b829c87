//! Runs the command and waits for what it does.

use std::fmt::Debug;
use std::io::{BufRead, BufReader, Read};
use std::ops::{Range, RangeInclusive};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// How long any step may take on a busy machine before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Locks of one test, by default in a folder, and space for files.
pub(crate) struct Sandbox {
    folder: TempDir,
    server: Option<String>,
    options: &'static str,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// A sandbox with these options for the locks of its folder: `&max_hold=1h`.
    pub(crate) fn with(options: &'static str) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), server: None, options }
    }

    /// A sandbox with the locks of a server.
    #[cfg(any(
        feature = "etcd",
        feature = "mysql",
        feature = "object-store",
        feature = "postgres",
        feature = "redis",
        feature = "zookeeper"
    ))]
    pub(crate) fn at(url: String) -> Self {
        Self { server: Some(url), ..Self::new() }
    }

    /// The URL of the locks; in a folder, with patience for processes that leave the gate slowly.
    pub(crate) fn url(&self) -> String {
        if let Some(url) = &self.server {
            return url.clone();
        }
        let (locks, patience) = (self.locks(), PATIENCE.as_secs());
        format!("file:{}?gate_patience={patience}s{}", locks.display(), self.options)
    }

    /// The folder of the locks.
    pub(crate) fn locks(&self) -> PathBuf {
        self.folder.path().join("locks")
    }

    /// The path of a file with that name beside the locks.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `distlock` with these arguments, on the locks of this sandbox.
    pub(crate) fn distlock<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = bare();
        command.arg("--url").arg(self.url()).args(arguments).current_dir(self.folder.path());
        command
    }

    /// Runs `distlock` with these arguments to its end.
    pub(crate) fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Output {
        self.distlock(arguments).output().unwrap()
    }

    /// Holds a lock in another process; returns once it is held.
    pub(crate) fn hold(&self, name: &str) -> Running {
        let mut holder = Running::start(self.distlock(["hold", "--json", name]).stdin(Stdio::piped()));
        holder.says_acquired();
        holder
    }

    /// Starts `exec` of a shell script under the lock `job`, with JSON events.
    pub(crate) fn exec(&self, options: &[&str], script: &str) -> Running {
        self.script_of("exec", options, script)
    }

    /// Starts a candidate of the election `job` that runs a shell script, with JSON events.
    pub(crate) fn elect(&self, options: &[&str], script: &str) -> Running {
        self.script_of("elect", options, script)
    }

    fn script_of(&self, subcommand: &str, options: &[&str], script: &str) -> Running {
        // The shell's messages about helpers that a signal has ended would stand between the events.
        let script = &format!("exec 2> /dev/null; {script}");
        let arguments =
            [[subcommand, "--json"].as_slice(), options, &["job", "--", "sh", "-c", script]].concat();
        Running::start(&mut self.distlock(arguments))
    }

    /// Takes the lock `job` away from its holder.
    pub(crate) fn take_away(&self) {
        assert_code(&self.run(["break", "--yes", "job"]), 0, "break");
    }

    /// The output of `status --json`.
    pub(crate) fn status(&self, name: &str) -> Value {
        let output = self.run(["status", "--json", name]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Stops a process outside the gate, where it does not block others: a waiting process enters the gate from time to time.
    pub(crate) fn stop_outside_the_gate(&self, running: &Running) {
        loop {
            running.signal(Signal::SIGSTOP);
            until("it stops", || is_stopped(running.pid()));
            if self.gate_is_free() {
                return;
            }
            running.signal(Signal::SIGCONT);
        }
    }

    /// Whether no process stays in the gate; a process that is not stopped in it has the time to leave it.
    fn gate_is_free(&self) -> bool {
        (0..100).any(|_| {
            thread::sleep(Duration::from_millis(1));
            let gate = std::fs::File::open(self.locks().join("gate")).unwrap();
            Flock::lock(gate, FlockArg::LockExclusiveNonblock).is_ok()
        })
    }

    /// Waits until this many processes wait for the lock.
    pub(crate) fn until_waiting(&self, name: &str, count: usize) {
        self.until_status(&format!("{count} wait for {name}"), name, |status| {
            status["waiters"].as_array().unwrap().len() == count
        });
    }

    /// Waits until the lock is so. Each look is a process.
    pub(crate) fn until_status(&self, what: &str, name: &str, is_so: impl Fn(&Value) -> bool) {
        let pauses = Duration::from_millis(50)..=Duration::from_millis(500);
        look(pauses, what, || is_so(&self.status(name)));
    }
}

/// Runs the following command with the default action of every signal: if the tests run in the background, or under `nohup`,
/// some signals are ignored, and processes inherit that.
pub(crate) const DEFAULT_SIGNALS: [&str; 2] = ["env", "--default-signal"];

/// What `distlock` answers at this URL on a machine that trusts the authorities of this file.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
pub(crate) fn status_where_the_system_trusts(authority: &Path, url: &str) -> Output {
    let mut command = bare();
    command.env("SSL_CERT_FILE", authority).env_remove("SSL_CERT_DIR");
    command.args(["--url", url, "status", "job"]).output().unwrap()
}

/// `distlock` without the variables from the environment of the tests.
pub(crate) fn bare() -> Command {
    let [env, default_signals] = DEFAULT_SIGNALS;
    let mut command = Command::new(env);
    command.args([default_signals, env!("CARGO_BIN_EXE_distlock")]);
    command.env_remove("DISTLOCK_URL").stdin(Stdio::null());
    // A group of its own, as a shell gives it: if the tests run outside a terminal's session, their own group is orphaned, and
    // the system stops no process in an orphaned group.
    command.process_group(0);
    command
}

/// A process that ends with the test at the latest.
pub(crate) struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
    errors: Receiver<String>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::start_as_it_is(command.stderr(Stdio::piped()))
    }

    /// Starts a command with the standard error that it already has.
    pub(crate) fn start_as_it_is(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let errors = child.stderr.take().map_or_else(|| channel().1, lines_of);
        Self { child, output, errors }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub(crate) fn close_input(&mut self) {
        self.child.stdin.take();
    }

    /// Waits for the next line on standard output.
    pub(crate) fn output_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "ended without a line: {:?}", self.errors.iter().collect::<Vec<_>>());
        line.trim_end().to_owned()
    }

    /// The process id on the next line.
    pub(crate) fn pid_line(&mut self) -> Pid {
        Pid::from_raw(self.output_line().parse().unwrap())
    }

    /// The next line on standard output, as JSON.
    pub(crate) fn output_event(&mut self) -> Value {
        serde_json::from_str(&self.output_line()).unwrap()
    }

    /// Waits for the event on standard output that says that the lock is held. On a busy machine it may first have to wait.
    pub(crate) fn says_acquired(&mut self) -> Value {
        let first = self.output_event();
        let event = if first["event"] == "waiting" { self.output_event() } else { first };
        assert_eq!(event["event"], "acquired");
        event
    }

    /// The next line on standard error.
    pub(crate) fn error_line(&self) -> String {
        self.errors.recv_timeout(PATIENCE).unwrap()
    }

    /// The remaining lines on standard error. Waits for the end of the process.
    pub(crate) fn error_lines(&self) -> Vec<String> {
        self.errors.iter().collect()
    }

    /// Waits for an event of this kind on standard error.
    pub(crate) fn event(&self, kind: &str) -> Value {
        loop {
            let line = self.errors.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no event {kind:?}"));
            let event: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}"));
            if event["event"] == kind {
                return event;
            }
        }
    }

    /// Waits for the end; returns the code, or 128 + the signal.
    pub(crate) fn code(&mut self) -> i32 {
        let mut status = None;
        until("the command ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        code_of(status.unwrap())
    }

    /// As `code`, for a process that takes long; the test has no other limit.
    pub(crate) fn code_at_last(&mut self) -> i32 {
        code_of(self.child.wait().unwrap())
    }

    /// Whether the process still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The rest of its standard output.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        rest
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines_of(errors: ChildStderr) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(errors).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}

/// Writes a program that is run afterwards. A child does it: as long as a process has the file open to write, no other can run it,
/// and each one that a test starts has the open files of all tests for a moment.
pub(crate) fn write_program(path: &Path, text: &str) {
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let written = Command::new("sh").args(["-c", write]).arg(path).arg(text).status().unwrap();
    assert!(written.success());
}

/// The code, or 128 + the signal, as in a shell's `$?`.
pub(crate) fn code_of(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap()
}

/// Runs the command with each of these limits on open files: it must exit with 70 and the remedy until there are enough, and
/// from then on with 0; never with another code.
#[track_caller]
pub(crate) fn with_few_descriptors_it_is_70(sandbox: &Sandbox, limits: Range<u32>) {
    let mut codes = Vec::new();
    for limit in limits {
        let script = format!("ulimit -n {limit} && exec {} exec job -- true", env!("CARGO_BIN_EXE_distlock"));
        let output =
            Command::new("sh").args(["-c", &script]).env("DISTLOCK_URL", sandbox.url()).output().unwrap();
        let code = code_of(output.status);
        if code == 70 {
            assert!(said(&output).contains("ulimit -n"), "{limit}: {output:?}");
        } else {
            assert_code(&output, 0, limit);
        }
        codes.push(code);
    }
    assert_eq!((codes.first(), codes.last()), (Some(&70), Some(&0)), "{codes:?}");
}

/// Whether this run is of all tests, and not only of those of the default tier.
pub(crate) fn is_all() -> bool {
    std::env::var_os("DISTLOCK_TESTS").is_some_and(|tier| tier == "all")
}

/// How often to repeat what seldom fails.
pub(crate) fn rounds(many: usize) -> usize {
    if is_all() { many } else { (many / 5).max(2) }
}

/// Waits until a condition is true.
pub(crate) fn until(what: &str, condition: impl FnMut() -> bool) {
    look(Duration::from_millis(5)..=Duration::from_millis(50), what, condition);
}

/// Looks after pauses that grow: what is looked at takes processor time from what is waited for.
fn look(pauses: RangeInclusive<Duration>, what: &str, mut condition: impl FnMut() -> bool) {
    let (begun, mut pause) = (Instant::now(), *pauses.start());
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        thread::sleep(pause);
        pause = (pause * 5 / 4).min(*pauses.end());
    }
}

/// Whether a process exists and is no zombie.
pub(crate) fn lives(pid: Pid) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Whether a process is stopped.
pub(crate) fn is_stopped(pid: Pid) -> bool {
    state(pid) == Some('T')
}

/// The system's letter for the state of a process.
fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Waits until a file contains this text.
pub(crate) fn until_file_has(file: &Path, text: &str) {
    until(&format!("{} has {text:?}", file.display()), || {
        std::fs::read_to_string(file).is_ok_and(|content| content.contains(text))
    });
}

/// Asserts how a finished command ended.
#[track_caller]
pub(crate) fn assert_code(output: &Output, code: i32, hint: impl Debug) {
    assert_eq!(code_of(output.status), code, "{hint:?}: {output:?}");
}

/// The last event on the standard error of a finished command. On a busy machine it may have said before that it waits.
pub(crate) fn last_event(output: &Output) -> Value {
    serde_json::from_str(said(output).lines().last().unwrap()).unwrap()
}

/// The standard error of a finished command.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
