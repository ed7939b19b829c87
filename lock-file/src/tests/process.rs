//! Processes that hold and wait, and that tests stop and kill.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use lock_core::{DistributedLock, LockClient, LockGuard};
use rustix::process::{Pid, Signal, kill_process};

use super::{SOON, client_in, eventually};
use crate::sync_point;

const FOLDER: &str = "DISTLOCK_TEST_FOLDER";

/// If set, the process polls so rarely that it makes no difference.
const NO_POLLING: &str = "DISTLOCK_TEST_NO_POLLING";

/// A process that obeys [`Helper::obey`].
pub(super) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
}

impl Process {
    pub(super) fn start(folder: &Path) -> Self {
        Self::spawn(&mut command(folder))
    }

    /// A process that stops itself when it first gets to `point`.
    pub(super) fn stopping_at(folder: &Path, point: sync_point::Point) -> Self {
        Self::stopping_at_time(folder, point, 1)
    }

    /// A process that stops itself when it gets to `point` for the n-th time.
    pub(super) fn stopping_at_time(folder: &Path, point: sync_point::Point, time: usize) -> Self {
        let place = format!("{point:?}:{time}");
        Self::spawn(command(folder).env(sync_point::STOP_AT, place).env(sync_point::NO_SECOND_CHANCES, "1"))
    }

    /// A process that checks again only after an event.
    pub(super) fn without_second_chances(folder: &Path) -> Self {
        Self::spawn(command(folder).env(sync_point::NO_SECOND_CHANCES, "1"))
    }

    /// A process that does not poll for changes that the system can report.
    pub(super) fn without_polling(folder: &Path) -> Self {
        Self::spawn(&mut without_polling(folder))
    }

    pub(super) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, lines) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()).lines());
        let (sender, output) = channel();
        std::thread::spawn(move || {
            // The lines that the test harness prints around it begin differently.
            for line in lines.map_while(Result::ok) {
                if let Some(answer) = line.split_once('@').map(|(_, answer)| answer.to_owned()) {
                    let _ = sender.send(answer);
                }
            }
        });
        Self { child, input, output }
    }

    pub(super) fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next line that the process prints.
    #[track_caller]
    pub(super) fn hear(&self) -> String {
        self.output.recv_timeout(SOON).expect("an answer of the process")
    }

    /// The next line, which must begin with `beginning`; returns the rest.
    #[track_caller]
    pub(super) fn expect(&self, beginning: &str) -> String {
        let line = self.hear();
        line.strip_prefix(beginning)
            .unwrap_or_else(|| panic!("{beginning:?} expected, not {line:?}"))
            .trim()
            .to_owned()
    }

    #[track_caller]
    pub(super) fn acquires(&mut self, name: &str) -> u64 {
        self.say(&format!("acquire {name}"));
        self.expect("granted").parse().unwrap()
    }

    /// Makes the process start a child that inherits the lock.
    #[track_caller]
    pub(super) fn starts_child(&mut self, name: &str) -> InheritingChild {
        self.say(&format!("child {name}"));
        let pid = self.expect("child");
        // The process that starts it may go on a moment before the child has closed what it does not inherit.
        eventually("the child has only one of the files", || files_of_locks(&pid) == 1);
        InheritingChild(Pid::from_raw(pid.parse().unwrap()).unwrap())
    }

    /// Makes the process unable to open more descriptors, or restores its limit.
    pub(super) fn limit_descriptors(&self, limit: Option<u64>) {
        use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
        let ours = getrlimit(Resource::Nofile);
        let limit = Rlimit { current: limit.or(ours.current), maximum: ours.maximum };
        prlimit(Some(Pid::from_child(&self.child)), Resource::Nofile, limit).unwrap();
    }

    pub(super) fn has_said_nothing(&self) -> bool {
        self.output.try_recv().is_err()
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops the process outside the gate, where it does not block others: a waiting process enters the gate from time to time.
    #[track_caller]
    pub(super) fn stop_outside_the_gate(&self, folder: &Path) {
        loop {
            self.signal(Signal::STOP);
            self.is_stopped_soon();
            if gate_is_free(folder) {
                return;
            }
            self.signal(Signal::CONT);
        }
    }

    #[track_caller]
    pub(super) fn is_stopped_soon(&self) {
        eventually("the process stops itself", || self.state() == 'T');
    }

    /// Waits until the watcher thread of the process waits for events.
    #[track_caller]
    pub(super) fn is_asleep_soon(&self) {
        let watcher_sleeps = || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok()).any(
                |stat| {
                    stat.contains("(distlock-files)") && stat.rsplit_once(") ").unwrap().1.starts_with('S')
                },
            )
        };
        let mut ticks_asleep = 0;
        eventually("its watcher sleeps", || {
            ticks_asleep = if watcher_sleeps() { ticks_asleep + 1 } else { 0 };
            ticks_asleep == 50
        });
    }

    pub(super) fn state(&self) -> char {
        self.stat().rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }

    /// Waits until the process, which has nothing else to do, has tried again and again to enter the gate.
    #[track_caller]
    pub(super) fn is_at_the_gate_soon(&self) {
        let before = self.wake_ups();
        eventually("it tries to enter the gate", || self.wake_ups() > before + 20);
    }

    /// How often its threads have gone to sleep, and so how often something has woken them.
    pub(super) fn wake_ups(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let statuses =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
        statuses
            .map(|status| {
                let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
                line.unwrap().trim().parse::<u64>().unwrap()
            })
            .sum()
    }

    fn stat(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap()
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the process in an orderly way.
    pub(super) fn end(mut self) {
        drop(self.input.take());
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether no process stays in the gate; a process that is not stopped in it has the time to leave it.
fn gate_is_free(folder: &Path) -> bool {
    let gate = std::fs::File::open(folder.join("gate")).unwrap();
    (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        rustix::fs::flock(&gate, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}

/// A process that has inherited a lock; it ends when this is dropped.
pub(super) struct InheritingChild(Pid);

impl Drop for InheritingChild {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// How many files and folders of locks a process has open.
fn files_of_locks(pid: &str) -> usize {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let open = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok());
    open.filter(|path| path.components().any(|part| part.as_os_str() == "locks")).count()
}

/// Starts [`Process::without_polling`].
pub(super) fn without_polling(folder: &Path) -> Command {
    let mut command = command(folder);
    command.env(NO_POLLING, "1");
    command
}

pub(super) fn command(folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "tests::process::helper_process",
            "--ignored",
            "--nocapture",
            "--quiet",
            "--test-threads=1",
        ])
        .env(FOLDER, folder);
    command
}

#[test]
#[ignore = "is run by the other tests, as a process of theirs"]
fn helper_process() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut options = super::patient(Path::new(&folder));
    if std::env::var_os(NO_POLLING).is_some() {
        options.poll_interval = Duration::from_secs(3600);
    }
    let client = match options.client(lock_core::ClientBuilder::new()) {
        Ok(client) => client,
        Err(error) => return println!("@error {error}"),
    };
    let mut helper = Helper { client, guards: HashMap::new(), hoard: Vec::new() };
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = runtime.block_on(helper.obey(&words));
        println!("@{answer}");
    }
    let _ = runtime.block_on(helper.client.close(SOON));
}

struct Helper {
    client: LockClient,
    guards: HashMap<String, LockGuard>,
    hoard: Vec<std::os::fd::OwnedFd>,
}

impl Helper {
    async fn obey(&mut self, words: &[&str]) -> String {
        match *words {
            ["acquire", name] => {
                let guard = self.lock(name).acquire().await;
                self.keep(name, guard.map(Some))
            }
            ["acquire", name, milliseconds] => {
                let wait = Duration::from_millis(milliseconds.parse().unwrap());
                let guard = self.lock(name).try_acquire_for(wait).await;
                self.keep(name, guard)
            }
            ["acquire", name, "while", path] => {
                let lock = self.lock(name);
                let guard = tokio::select! {
                    guard = lock.acquire() => guard.map(Some),
                    () = is_gone(Path::new(path)) => Ok(None),
                };
                self.keep(name, guard)
            }
            ["release", name] => match self.guards.remove(name).unwrap().release().await {
                Ok(()) => "released".to_owned(),
                Err(error) => format!("error {error}"),
            },
            ["lost", name] => format!("lost {:?}", self.guards[name].hold().lost().await.unwrap()),
            ["break", name] => {
                let holder = std::env::var("DISTLOCK_TEST_HOLDER").unwrap();
                let broken = self.client.break_holder(name, &lock_core::HolderId::new(holder)).await.unwrap();
                format!("broken {:?}", broken.taken_away)
            }
            ["child", name] => self.start_child(name),
            ["exhaust"] => self.exhaust_inotify(),
            ["fill", path] => fill(Path::new(path)),
            ["count", path, times] => self.count(Path::new(path), times.parse().unwrap()).await,
            ["mix", path, times] => self.mix(Path::new(path), times.parse().unwrap()).await,
            ["crowd", path, times] => self.crowd(Path::new(path), times.parse().unwrap()).await,
            ["cycle", name] => self.cycle_for_ever(name).await,
            _ => panic!("{words:?}"),
        }
    }

    /// The lock that a word names: `a`, `read:a`, or `2/5:a` for two of five permits.
    fn lock(&self, word: &str) -> Arc<dyn DistributedLock> {
        let Some((how, name)) = word.split_once(':') else { return self.client.mutex(word).unwrap() };
        let Some((take, of)) = how.split_once('/') else { return self.client.rw_lock(name).unwrap().read() };
        let slots = self.client.semaphore(name, of.parse().unwrap()).unwrap();
        slots.permits(take.parse().unwrap()).unwrap()
    }

    fn keep(&mut self, name: &str, guard: Result<Option<LockGuard>, lock_core::LockError>) -> String {
        match guard {
            Ok(Some(guard)) => {
                let token = guard.hold().token().unwrap();
                self.guards.insert(name.to_owned(), guard);
                format!("granted {token}")
            }
            Ok(None) => "refused".to_owned(),
            Err(error) => format!("error {error}"),
        }
    }

    /// Starts a child that has the lock's descriptor as its standard input, and returns its process id.
    fn start_child(&self, name: &str) -> String {
        let hold = self.guards[name].hold();
        let descriptor = hold.descriptor().unwrap().as_fd().try_clone_to_owned().unwrap();
        let child = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::from(descriptor))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        format!("child {}", child.unwrap().id())
    }

    fn exhaust_inotify(&mut self) -> String {
        use rustix::fs::inotify::{CreateFlags, init};
        while let Ok(instance) = init(CreateFlags::CLOEXEC) {
            self.hoard.push(instance);
        }
        format!("exhausted {}", self.hoard.len())
    }

    /// Increments the number in a file, under the lock, in a way that would lose counts without the lock.
    async fn count(&self, path: &Path, times: u32) -> String {
        let lock = self.client.mutex("counter").unwrap();
        let mut tokens = Vec::new();
        for _ in 0..times {
            let guard = lock.acquire().await.unwrap();
            let number: u32 = std::fs::read_to_string(path).unwrap().parse().unwrap();
            std::thread::yield_now();
            std::fs::write(path, (number + 1).to_string()).unwrap();
            tokens.push(guard.hold().token().unwrap().to_string());
            guard.release().await.unwrap();
        }
        format!("counted {}", tokens.join(" "))
    }

    /// Writes a number in two steps, or reads it twice: beside a writer a reader would see it change.
    async fn mix(&self, path: &Path, times: u32) -> String {
        let read = || std::fs::read_to_string(path).unwrap();
        let mut last = 0;
        for round in 0..times {
            let writes = round % 4 == 0;
            let guard = self.lock(if writes { "mixed" } else { "read:mixed" }).acquire().await.unwrap();
            let token = guard.hold().token().unwrap().get();
            assert!(token > last);
            last = token;
            let number = read();
            std::thread::yield_now();
            if writes {
                std::fs::write(path, (number.parse::<u32>().unwrap() + 1).to_string()).unwrap();
            } else {
                assert_eq!(read(), number);
            }
            guard.release().await.unwrap();
        }
        "mixed".to_owned()
    }

    /// Has as many files in a folder as it has of seven permits.
    async fn crowd(&self, path: &Path, times: u32) -> String {
        for round in 0..times {
            let take = 1 + round % 4;
            let guard = self.lock(&format!("{take}/7:crowd")).acquire().await.unwrap();
            let token = guard.hold().token().unwrap();
            let files: Vec<_> = (0..take).map(|number| path.join(format!("{token}-{number}"))).collect();
            for file in &files {
                std::fs::write(file, "").unwrap();
            }
            let all = std::fs::read_dir(path).unwrap().count();
            assert!(all <= 7, "{all} permits");
            for file in &files {
                std::fs::remove_file(file).unwrap();
            }
            guard.release().await.unwrap();
        }
        "crowded".to_owned()
    }

    async fn cycle_for_ever(&self, name: &str) -> String {
        let lock = self.client.mutex(name).unwrap();
        loop {
            let guard = lock.acquire().await.unwrap();
            println!("@granted {}", guard.hold().token().unwrap());
            guard.release().await.unwrap();
        }
    }
}

async fn is_gone(path: &Path) {
    while path.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Writes to a file until the disk is full.
fn fill(path: &Path) -> String {
    let mut file = std::fs::File::create(path).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    "full".to_owned()
}

/// A client of the test itself, in the folder of a process.
pub(super) fn observer(folder: &Path) -> LockClient {
    client_in(folder)
}
