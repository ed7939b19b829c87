//! What all servers have in common: a process with a log, which its handle starts, waits for, stops and ends.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use conformance_tests::signals;
use lock_core::spi::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::time::Instant;

use crate::{During, Failure, Outcome};

pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long a server may take until its first answer. The value is generous: it costs time only when something is
/// wrong.
const READY_WITHIN: Duration = Duration::from_mins(2);

const ANSWERS_WITHIN: Duration = Duration::from_mins(1);

/// How long a server may take to end in order, and what it has started to end after it.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

const LINES_OF_LOG: usize = 15;

/// Waits until its input ends, which happens when the program at the other end of the pipe ends, even if it is killed.
/// Then kills the server, and removes its folder, to which a server that is ending may still write.
const WATCH: &str =
    r#"read -r _; kill -KILL "$1"; for _ in 1 2 3 4 5; do rm -rf -- "$2" && break; sleep 1; done"#;

/// What happens to a server's data when it is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// The data that it has written to the disk survives: with Redis only what the setting `appendonly` makes it write.
    Kept,
    /// Nothing survives.
    Lost,
}

/// The process of a server. It is killed when this is dropped, and when the program that started it ends.
#[derive(Debug)]
pub struct ServerProcess {
    name: String,
    missing: String,
    folder: PathBuf,
    running: Mutex<Running>,
}

/// The process and its watchdog, and the command that starts it again.
#[derive(Debug)]
struct Running {
    command: Command,
    server: Child,
    /// As long as the server is not reaped: from then on another process may have its id, which nothing here may signal.
    watch: Option<Child>,
}

impl Running {
    /// The server, which may have ended, as long as its id is its own.
    fn server(&self) -> io::Result<&Child> {
        self.watch.as_ref().map(|_| &self.server).ok_or_else(|| io::Error::other("it has ended"))
    }

    /// Whether it has ended by itself. It is not reaped before its watchdog has ended.
    fn has_ended(&self) -> io::Result<bool> {
        let process = WaitId::Pid(Pid::from_child(self.server()?));
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(process, options)?.is_some())
    }

    /// Reaps it if it has ended by itself, and returns how.
    fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.has_ended().unwrap_or(true).then(|| self.end()).transpose()
    }

    /// Returns the processes that it has started: PostgreSQL has one for each connection, and some more.
    fn others(&self) -> Vec<Pid> {
        let Ok(pid) = self.server().map(Child::id) else { return Vec::new() };
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        children.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
    }

    /// Ends the watchdog, and then the server. Returns how that has ended, if it had.
    fn end(&mut self) -> io::Result<ExitStatus> {
        if let Some(watch) = &mut self.watch {
            end(watch)?;
        }
        self.watch = None;
        end(&mut self.server)
    }
}

impl ServerProcess {
    /// Starts `command`, which messages call `name`. Its output goes into a log in `folder`. If this program is killed,
    /// the folder is removed together with the process.
    ///
    /// # Errors
    /// When it cannot be started; `missing` is the text for a program that does not exist.
    pub(crate) fn start(name: &str, mut command: Command, folder: &Path, missing: &str) -> Outcome<Self> {
        // In process groups of their own: signals of a terminal to the program's group are only for the program.
        command.stdin(Stdio::null()).stdout(log(name, folder)?).stderr(log(name, folder)?).process_group(0);
        let (server, watch) = spawn(&mut command, name, folder, missing)?;
        let running = Mutex::new(Running { command, server, watch: Some(watch) });
        Ok(Self { name: name.to_owned(), missing: missing.to_owned(), folder: folder.to_owned(), running })
    }

    /// Starts it again after [`ServerProcess::kill`].
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn restart(&self) -> Outcome {
        let mut running = self.running.lock();
        let (server, watch) = spawn(&mut running.command, &self.name, &self.folder, &self.missing)?;
        (running.server, running.watch) = (server, Some(watch));
        Ok(())
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.running.lock().server.id()
    }

    /// Waits until `check` returns without an error.
    ///
    /// # Errors
    /// When the process ends first, or takes too long: the end of its log.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting.
    pub(crate) async fn ready<T, F: Future<Output = Outcome<T>>>(
        &self,
        mut check: impl FnMut() -> F,
    ) -> Outcome<T> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let error = match check().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if let Some(status) = self.running.lock().ended()? {
                return Err(self.failure(&format!("ended with {status}")));
            }
            if Instant::now() > deadline {
                return Err(self.failure(&format!("does not answer within {READY_WITHIN:?} ({error})")));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits for the answer to a request, and explains what went wrong with the log of the server.
    ///
    /// # Errors
    /// When there is none, or the server refuses.
    ///
    /// # Cancel safety
    /// That of `asked`.
    pub(crate) async fn answer<T>(&self, what: &str, asked: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        let said = match tokio::time::timeout(ANSWERS_WITHIN, asked).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(failure)) => format!("did not carry out {what:?} ({failure})"),
            Err(_) => format!("did not answer {what:?} within {ANSWERS_WITHIN:?}"),
        };
        Err(self.failure(&said))
    }

    /// Creates a failure that says what happened to the server, and what it wrote last.
    pub(crate) fn failure(&self, what: &str) -> Failure {
        let name = &self.name;
        let log = fs::read_to_string(self.log()).unwrap_or_else(|error| format!("(no log: {error})"));
        let lines: Vec<_> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LINES_OF_LOG)..].join("\n");
        Failure::new(format!("{name} {what}; the end of its log:\n{last}"))
    }

    /// Returns its log file, to which it appends after a restart.
    pub fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.name))
    }

    /// Kills the process with a signal that it cannot catch, and waits until it and the processes that it has started are gone. Does
    /// nothing if it is already gone.
    ///
    /// # Errors
    /// When the system does not permit it.
    pub fn kill(&self) -> Outcome {
        let mut running = self.running.lock();
        let others = running.others();
        running.end().during(format_args!("kill {}", self.name))?;
        // They notice by themselves, unless they are suspended; then their ids are still their own.
        let suspended: Vec<_> =
            others.iter().copied().filter(|process| state(*process) == Some('T')).collect();
        signal_all(&suspended, Signal::CONT);
        wait_until(|| !others.iter().any(|process| is_running(*process)));
        Ok(())
    }

    /// Returns the processes that it has started.
    #[cfg(test)]
    pub(crate) fn others(&self) -> Vec<Pid> {
        self.running.lock().others()
    }

    /// Asks the process to end at once, but in order, and kills it if it does not. It may be suspended.
    pub(crate) fn quit(&self) -> Outcome {
        let ask = |server: &Child| Ok(kill_process(Pid::from_child(server), Signal::QUIT)?);
        let asked = self.running.lock().server().and_then(ask);
        if asked.is_ok() && self.resume().is_ok() {
            wait_until(|| self.running.lock().has_ended().unwrap_or(true));
        }
        self.kill()
    }

    /// Suspends the process: it keeps its connections, the system accepts new ones for it, and it answers none of them.
    ///
    /// # Errors
    /// When it has ended.
    pub fn stop(&self) -> Outcome {
        let running = self.running.lock();
        running.server().and_then(signals::stop).during(format_args!("stop {}", self.name))?;
        signal_all(&running.others(), Signal::STOP);
        Ok(())
    }

    /// Resumes a stopped process.
    ///
    /// # Errors
    /// When it has ended.
    pub fn resume(&self) -> Outcome {
        let running = self.running.lock();
        signal_all(&running.others(), Signal::CONT);
        running.server().and_then(signals::resume).during(format_args!("resume {}", self.name))
    }
}

fn signal_all(processes: &[Pid], signal: Signal) {
    for process in processes {
        // It may have ended meanwhile.
        let _ = kill_process(*process, signal);
    }
}

/// Returns the state of a process, as the system shows it; `None` when it is gone.
fn state(process: Pid) -> Option<char> {
    let status = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    status.rsplit_once(") ")?.1.chars().next()
}

/// The process that adopts orphans may leave a zombie for a while.
pub(crate) fn is_running(process: Pid) -> bool {
    !matches!(state(process), None | Some('Z'))
}

/// Waits for the end of a process, as long as it may take.
fn wait_until(has_ended: impl Fn() -> bool) {
    let deadline = Instant::now() + ENDS_WITHIN;
    while !has_ended() && Instant::now() < deadline {
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Starts a server and its watchdog.
fn spawn(command: &mut Command, name: &str, folder: &Path, missing: &str) -> Outcome<(Child, Child)> {
    let mut server = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::new(missing),
        _ => Failure::new(format!("{name} cannot be started: {error}")),
    })?;
    let mut watch = Command::new("sh");
    watch.args(["-c", WATCH, "sh", &server.id().to_string()]).arg(folder).process_group(0);
    let watch = watch.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    // Without the watchdog, nothing would end it.
    let watch = watch.inspect_err(|_| drop(end(&mut server)));
    Ok((server, watch.during(format_args!("nothing can watch over {name}"))?))
}

fn log(name: &str, folder: &Path) -> Outcome<File> {
    let path = folder.join(format!("{name}.log"));
    File::options().create(true).append(true).open(&path).during(path.display())
}

fn end(process: &mut Child) -> io::Result<ExitStatus> {
    process.kill()?;
    process.wait()
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // A destructor cannot report an error.
        let _ = self.kill();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::io::{BufRead, BufReader};

    use super::*;

    const PROGRAM: &str = "DISTLOCK_TEST_STARTS_A_SERVER_IN";

    fn sleeper() -> Command {
        let mut command = Command::new("sleep");
        command.arg("3600");
        command
    }

    fn start(command: Command, folder: &Path) -> Outcome<ServerProcess> {
        ServerProcess::start("server", command, folder, "install it")
    }

    fn watch_of(server: &ServerProcess) -> u32 {
        server.running.lock().watch.as_ref().unwrap().id()
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn state(pid: u32) -> Option<char> {
        super::state(Pid::from_raw(pid.cast_signed()).unwrap())
    }

    fn eventually(what: &str, condition: impl Fn() -> bool) {
        let deadline = std::time::Instant::now() + READY_WITHIN;
        while !condition() {
            assert!(std::time::Instant::now() < deadline, "{what}: not so within {READY_WITHIN:?}");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    #[test]
    fn a_program_that_is_missing_is_one_clear_line() {
        let folder = tempfile::tempdir().unwrap();
        let failure = start(Command::new("no-such-program-anywhere"), folder.path()).unwrap_err();
        assert_eq!(failure.to_string(), "install it");
    }

    #[tokio::test]
    async fn a_server_that_ends_at_once_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let server = start(shell("echo the port is taken; exit 3"), folder.path()).unwrap();
        let never = || async { Outcome::<()>::Err(Failure::new("no answer")) };
        let failure = server.ready(never).await.unwrap_err().to_string();
        assert!(failure.contains("exit status: 3") && failure.contains("the port is taken"), "{failure}");
    }

    #[tokio::test]
    async fn the_id_of_a_server_that_has_ended_is_its_own_until_its_watchdog_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let server = start(shell("exit 3"), folder.path()).unwrap();
        let (pid, watch) = (server.pid(), watch_of(&server));
        eventually("it has ended", || state(pid) == Some('Z'));
        server.stop().unwrap_err();
        assert_eq!((state(pid), state(watch).is_some()), (Some('Z'), true));
        let never = || async { Outcome::<()>::Err(Failure::new("no answer")) };
        let failure = server.ready(never).await.unwrap_err().to_string();
        assert!(failure.contains("exit status: 3"), "{failure}");
        assert_eq!((state(pid), state(watch)), (None, None));
    }

    #[test]
    fn what_has_the_id_of_a_server_that_is_gone_gets_no_signal() {
        let folder = tempfile::tempdir().unwrap();
        let server = start(sleeper(), folder.path()).unwrap();
        server.kill().unwrap();
        // As if this were a process that has got the id.
        server.running.lock().server = sleeper().process_group(0).spawn().unwrap();
        let pid = server.pid();
        server.stop().unwrap_err();
        server.resume().unwrap_err();
        assert_eq!(server.others(), []);
        assert_ne!(state(pid), Some('T'));
        end(&mut server.running.lock().server).unwrap();
    }

    #[test]
    fn the_end_of_the_handle_is_the_end_of_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let server = start(sleeper(), folder.path()).unwrap();
        let (pid, watch) = (server.pid(), watch_of(&server));
        assert!(state(pid).is_some());
        drop(server);
        assert_eq!((state(pid), state(watch)), (None, None));
        assert!(folder.path().exists(), "the folder is not the handle's to remove");
    }

    #[test]
    fn a_stopped_process_stands_still_and_can_be_killed() {
        let folder = tempfile::tempdir().unwrap();
        let server = start(sleeper(), folder.path()).unwrap();
        server.stop().unwrap();
        assert_eq!(state(server.pid()), Some('T'));
        server.resume().unwrap();
        eventually("it runs on", || state(server.pid()) != Some('T'));
        server.stop().unwrap();
        server.kill().unwrap();
        assert_eq!(state(server.pid()), None);
        server.kill().unwrap();
    }

    /// Not a test by itself: the next test starts it as a process, and kills it.
    #[test]
    fn starts_a_server_on_request() {
        let Some(folder) = std::env::var_os(PROGRAM) else { return };
        let server = start(sleeper(), Path::new(&folder)).unwrap();
        println!("\npid {}", server.pid());
        std::thread::sleep(READY_WITHIN * 10);
    }

    #[test]
    fn a_server_does_not_outlive_a_program_that_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("of the server");
        fs::create_dir(&place).unwrap();
        let name = "process::tests::starts_a_server_on_request";
        let mut program = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(PROGRAM, &place)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines().map_while(Result::ok);
        let pid = lines.find_map(|line| line.strip_prefix("pid ")?.parse().ok());
        let pid: u32 = pid.unwrap();
        assert!(state(pid).is_some());
        program.kill().unwrap();
        program.wait().unwrap();
        // The process that adopts orphans may leave a zombie for a while.
        eventually("the server is gone", || matches!(state(pid), None | Some('Z')));
        eventually("its folder is gone", || !place.exists());
    }
}
