//! One thread per process, which serves everything that waits: waiters for their turn, holders for a loss, and actions that could
//! not enter the gate at once.
//!
//! Each of them is a [`WatchedTask`]. The thread checks on its behalf, asks the system for an event of the next change, **checks
//! again** and only then lets it sleep, so that it misses no change. Hundreds of waiters cost one thread, one inotify instance,
//! and no processor time while nothing happens.
//!
//! A user has few inotify instances. Where there is none left, the thread checks from time to time.
//!
//! An event is only a hint to check. The event about a dying process comes before the kernel has dropped its `flock`, so the
//! thread checks several times after it, at growing intervals. It does the same after a new watch, because the event may have
//! come just before the watch.

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use lock_core::spi::Mutex;

use crate::failure::Failure;
use crate::file_events::{FileEvent, FileEvents, WatchId, Watching};
use crate::sync_point::{self, Point};

/// Something that waits for files to change.
pub(crate) trait WatchedTask: Send + Sync {
    /// Checks whether the change has come, and returns what to do next. Must not block.
    fn check(&self) -> Next;
}

/// What the watcher does next with a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// Forget it.
    Over,
    /// Check again after some time.
    Again(Duration),
    /// Check again when this file changes, or every `otherwise` if the system cannot report changes.
    Watch { path: PathBuf, otherwise: Duration },
}

/// How often to look for a missed change. There should be none, but a file system may send no events. Longer in tests, which
/// must find out what is missed.
const INSPECTION: Duration = Duration::from_secs(if cfg!(test) { 3600 } else { 30 });

/// After an event that comes too early: the first pause, the longest, and when to stop. Each pause is twice the one before.
const FIRST_RETRY: Duration = Duration::from_micros(50);
const LONGEST_RETRY: Duration = Duration::from_secs(1);
pub(crate) const RETRIES_END: Duration = Duration::from_secs(2);

/// The longest pause of a task that still finds changes while it checks, or nothing to watch.
const LONGEST_CHASE: Duration = Duration::from_millis(100);

/// How often one task may find changes while it checks before the others have their turn.
const CHECKS_IN_A_ROW: usize = 4;

/// The thread, which runs until the last reference to the watcher is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    events: FileEvents,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ended: Ended,
    next_key: Key,
    tasks: HashMap<Key, Registered>,
    due: BTreeSet<(Instant, Key)>,
    watched: HashMap<WatchId, Vec<Key>>,
    /// When the thread wakes by itself; `None` while it is awake.
    wakes_at: Option<Instant>,
}

#[derive(Default, PartialEq, Eq)]
enum Ended {
    #[default]
    No,
    Yes,
}

type Key = u64;

struct Registered {
    task: Arc<dyn WatchedTask>,
    watch: Option<WatchId>,
    due: Option<Instant>,
    retries: Option<Retries>,
    /// The next pause for a task that has had its turn and still cannot sleep.
    chase: Duration,
}

#[derive(Clone, Copy)]
struct Retries {
    pause: Duration,
    until: Instant,
}

/// Keeps a task served until this is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    shared: Weak<Shared>,
    key: Key,
}

impl Watcher {
    /// The only watcher of this process.
    pub(crate) fn of_process() -> Result<Arc<Self>, Failure> {
        static OF_PROCESS: Mutex<Weak<Watcher>> = Mutex::new(Weak::new());
        let mut of_process = OF_PROCESS.lock();
        if let Some(watcher) = of_process.upgrade() {
            return Ok(watcher);
        }
        let watcher = Arc::new(Self::start()?);
        *of_process = Arc::downgrade(&watcher);
        Ok(watcher)
    }

    fn start() -> Result<Self, Failure> {
        let failure = |errno| Failure::system("start the watcher of", Path::new("lock files"), errno);
        let events = FileEvents::new().map_err(failure)?;
        let shared = Arc::new(Shared { events, state: Mutex::default() });
        let of_thread = Arc::clone(&shared);
        thread::Builder::new().name("distlock-files".to_owned()).spawn(move || of_thread.run()).map_err(
            |error| failure(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN)),
        )?;
        Ok(Self { shared })
    }

    /// Serves a task, starting after `delay`.
    pub(crate) fn register(&self, task: Arc<dyn WatchedTask>, delay: Duration) -> Registration {
        let due = Instant::now() + delay;
        let mut state = self.shared.state.lock();
        let key = state.next_key;
        state.next_key += 1;
        state
            .tasks
            .insert(key, Registered { task, watch: None, due: Some(due), retries: None, chase: FIRST_RETRY });
        state.due.insert((due, key));
        let too_late = state.wakes_at.is_some_and(|wakes_at| wakes_at > due);
        if too_late {
            // This call wakes it, so no other call needs to ring.
            state.wakes_at = None;
            drop(state);
            self.shared.events.ring();
        }
        Registration { shared: Arc::downgrade(&self.shared), key }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.state.lock().ended = Ended::Yes;
        self.shared.events.ring();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.forget(self.key);
        }
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let (due, timeout) = {
                let mut state = self.state.lock();
                if state.ended == Ended::Yes {
                    return;
                }
                state.take_due(Instant::now())
            };
            for key in &due {
                self.attend(*key);
            }
            if !due.is_empty() {
                continue;
            }
            let events = self.events.wait(timeout);
            let touched = self.state.lock().touched(&events);
            for key in touched {
                self.attend(key);
            }
        }
    }

    /// Checks for one task until it sleeps, is over, or has had its turn.
    fn attend(&self, key: Key) {
        for _ in 0..CHECKS_IN_A_ROW {
            let Some(task) = self.state.lock().tasks.get(&key).map(|registered| Arc::clone(&registered.task))
            else {
                return;
            };
            // A task is code of this crate; a panic in one must not harm the others.
            let next = catch_unwind(AssertUnwindSafe(|| task.check())).unwrap_or(Next::Over);
            match next {
                Next::Over => return self.forget(key),
                Next::Again(delay) => return self.state.lock().schedule(key, delay),
                Next::Watch { path, otherwise } => {
                    sync_point::reach(Point::BeforeWatch);
                    match self.events.watch(&path) {
                        Watching::Yes(watch) if self.watches_already(key, watch) => {
                            return sync_point::reach(Point::BeforeSleep);
                        }
                        Watching::Yes(_) | Watching::Missing => {}
                        Watching::Unable => return self.state.lock().schedule(key, otherwise),
                    }
                }
            }
        }
        let mut state = self.state.lock();
        let pause = state.tasks.get_mut(&key).map_or(FIRST_RETRY, Registered::next_chase);
        state.schedule(key, pause);
    }

    /// Whether the same file was already watched before the check, so that no change can have been missed. If so, the task
    /// sleeps.
    fn watches_already(&self, key: Key, watch: WatchId) -> bool {
        let mut state = self.state.lock();
        let Some(registered) = state.tasks.get_mut(&key) else {
            // The task was forgotten meanwhile, and the watch may have been made for it alone.
            if !state.watched.contains_key(&watch) {
                self.events.unwatch(watch);
            }
            return true;
        };
        if registered.watch == Some(watch) {
            registered.chase = FIRST_RETRY;
            let pause = registered.next_pause(Instant::now());
            state.schedule(key, pause);
            return true;
        }
        let former = registered.watch.replace(watch);
        registered.retries = Some(Retries::from(Instant::now()));
        state.watched.entry(watch).or_default().push(key);
        if let Some(former) = former {
            self.unwatch(&mut state, former, key);
        }
        false
    }

    fn forget(&self, key: Key) {
        let mut state = self.state.lock();
        let Some(registered) = state.tasks.remove(&key) else { return };
        if let Some(due) = registered.due {
            state.due.remove(&(due, key));
        }
        if let Some(watch) = registered.watch {
            self.unwatch(&mut state, watch, key);
        }
        drop(state);
        // Dropped after the mutex is unlocked: its drop may run code from outside this crate.
        drop(registered);
    }

    fn unwatch(&self, state: &mut State, watch: WatchId, key: Key) {
        if let Some(keys) = state.watched.get_mut(&watch) {
            keys.retain(|other| *other != key);
            if keys.is_empty() {
                state.watched.remove(&watch);
                self.events.unwatch(watch);
            }
        }
    }
}

impl State {
    /// The tasks that are due; if there are none, how long until one is.
    fn take_due(&mut self, now: Instant) -> (Vec<Key>, Duration) {
        let mut due = Vec::new();
        while let Some(&(moment, key)) = self.due.first() {
            if moment > now {
                break;
            }
            self.due.pop_first();
            if let Some(registered) = self.tasks.get_mut(&key) {
                registered.due = None;
            }
            due.push(key);
        }
        let timeout = self.due.first().map_or(INSPECTION, |(moment, _)| *moment - now);
        self.wakes_at = due.is_empty().then(|| now + timeout);
        (due, timeout)
    }

    /// The tasks that `events` concern.
    fn touched(&mut self, events: &[FileEvent]) -> BTreeSet<Key> {
        self.wakes_at = None;
        let now = Instant::now();
        let mut touched = BTreeSet::new();
        for event in events {
            match event {
                FileEvent::Overflow => touched.extend(self.tasks.keys()),
                FileEvent::Changed(watch) => touched.extend(self.watched.get(watch).into_iter().flatten()),
                FileEvent::Closed(watch) => {
                    for key in self.watched.get(watch).into_iter().flatten() {
                        touched.insert(*key);
                        if let Some(registered) = self.tasks.get_mut(key) {
                            registered.retries = Some(Retries::from(now));
                        }
                    }
                }
            }
        }
        touched
    }

    fn schedule(&mut self, key: Key, delay: Duration) {
        let Some(registered) = self.tasks.get_mut(&key) else { return };
        let due = Instant::now() + delay;
        if let Some(former) = registered.due.replace(due) {
            self.due.remove(&(former, key));
        }
        self.due.insert((due, key));
    }
}

impl Retries {
    fn from(now: Instant) -> Self {
        Self { pause: FIRST_RETRY, until: now + RETRIES_END }
    }
}

impl Registered {
    /// How long to pause for the task. Longer each time, so that endless changes do not use up the processor.
    fn next_chase(&mut self) -> Duration {
        let pause = self.chase;
        self.chase = (pause * 2).min(LONGEST_CHASE);
        pause
    }

    /// How long to sleep at most without an event.
    fn next_pause(&mut self, now: Instant) -> Duration {
        match &mut self.retries {
            Some(retries) if now < retries.until && sync_point::second_chances() => {
                let pause = retries.pause;
                retries.pause = (pause * 2).min(LONGEST_RETRY);
                pause
            }
            _ => {
                self.retries = None;
                INSPECTION
            }
        }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("State").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Wants to watch a file that does not exist.
    struct Hopeless {
        looks: AtomicUsize,
    }

    impl WatchedTask for Hopeless {
        fn check(&self) -> Next {
            self.looks.fetch_add(1, Ordering::SeqCst);
            Next::Watch { path: PathBuf::from("/nonexistent/file"), otherwise: Duration::from_secs(1) }
        }
    }

    #[test]
    fn nothing_to_watch_is_no_reason_to_spin() {
        let watcher = Watcher::start().unwrap();
        let task = Arc::new(Hopeless { looks: AtomicUsize::new(0) });
        let registration = watcher.register(Arc::clone(&task) as Arc<dyn WatchedTask>, Duration::ZERO);
        let begun = Instant::now();
        let looks = || task.looks.load(Ordering::SeqCst);
        while looks() <= CHECKS_IN_A_ROW * 12 {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} looks", looks());
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(500));
        // 12 pauses up to the longest, and then only those; without growing pauses it would be thousands of checks.
        let looks = looks();
        let longest_pauses = begun.elapsed().as_millis() / LONGEST_CHASE.as_millis();
        let turns = 14 + usize::try_from(longest_pauses).unwrap();
        assert!(looks <= CHECKS_IN_A_ROW * turns, "{looks} looks in {turns} turns");
        drop(registration);
    }
}
