//! The work of a worker, on a thread or in a process.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{Clock, DistributedLock, Hold, LockClient, LockError, LockGuard, LossReason, Subscription};
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::contend::Contest;
use super::host::Host;
use super::lock_use::LockUse;
use super::protocol::{Command, Patience, Report, Visit};
use super::{kind_of, spell};

const CLOSE_WITHIN: Duration = Duration::from_secs(30);

/// Returns the current time of the clock that all workers on a machine share.
pub(crate) fn stamp() -> u64 {
    Clock::system().now().as_nanoseconds()
}

/// Starts a worker on a thread.
pub(super) fn start_thread(client: LockClient) -> io::Result<(Host, UnboundedReceiver<Report>)> {
    let (sender, commands) = mpsc::unbounded_channel();
    let (reports, receiver) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tell = move |report| {
        // If there is no receiver any more, the case has ended.
        let _ = reports.send(report);
    };
    thread::Builder::new()
        .name("worker".to_owned())
        .spawn(move || runtime.block_on(serve(client, commands, tell)))?;
    Ok((Host::Thread { commands: sender }, receiver))
}

/// Executes commands until `Quit`, or until no commands can come any more.
pub(super) async fn serve(
    client: LockClient,
    mut commands: UnboundedReceiver<Command>,
    tell: impl Fn(Report) + Clone + Send + Sync + 'static,
) {
    let service = Service {
        client,
        held: Arc::default(),
        listening: Arc::default(),
        contest: Arc::default(),
        leave: Arc::default(),
        tell,
    };
    (service.tell)(Report::Ready);
    loop {
        match commands.recv().await.unwrap_or(Command::Quit) {
            Command::Acquire { name, patience } => {
                // In a task, so that the worker can answer other commands while it waits.
                tokio::spawn(service.clone().acquire(name, patience));
            }
            Command::Release { name } => service.release(&name).await,
            Command::Look { name } => service.look(&name),
            Command::Cycle { name, file, times } => service.cycle(&name, file.as_deref(), times).await,
            Command::Contend { name, file } => {
                tokio::spawn(service.clone().contend(name, file));
            }
            Command::Cling { milliseconds } => service.contest.cling(Duration::from_millis(milliseconds)),
            Command::Rest => service.contest.rest(),
            Command::Enter { name, lock_use } => {
                tokio::spawn(service.clone().enter(name, lock_use));
            }
            Command::Leave => service.leave.notify_one(),
            Command::Quit => break,
        }
    }
    service.held.lock().clear();
    let closed = service.client.close(CLOSE_WITHIN).await;
    service.answer(closed.map(|()| Report::Closed));
}

/// The state of a worker.
#[derive(Clone)]
pub(super) struct Service<T> {
    pub(super) client: LockClient,
    held: Arc<Mutex<HashMap<String, Held>>>,
    /// The listener of each lock that the worker has acquired.
    listening: Arc<Mutex<HashMap<String, Subscription>>>,
    pub(super) contest: Arc<Contest>,
    leave: Arc<Notify>,
    pub(super) tell: T,
}

struct Held {
    guard: LockGuard,
    losses: Losses,
}

type Losses = Arc<Mutex<Vec<u64>>>;

impl<T: Fn(Report) + Clone + Send + Sync + 'static> Service<T> {
    pub(super) fn answer(&self, result: Result<Report, LockError>) {
        (self.tell)(
            result.unwrap_or_else(|error| Report::Failed { kind: kind_of(&error), text: error.to_string() }),
        );
    }

    fn lock(&self, name: &str) -> Result<(Arc<dyn DistributedLock>, Losses), LockError> {
        let lock = self.client.mutex(name)?;
        let losses = Losses::default();
        let (seen, tell) = (Arc::clone(&losses), self.tell.clone());
        let subscription = lock.add_listener(Arc::new(move |_: &Hold, reason: &LossReason| {
            let at = stamp();
            seen.lock().push(at);
            tell(Report::Lost { reason: spell(*reason), at });
        }));
        let previous = self.listening.lock().insert(name.to_owned(), subscription);
        drop(previous);
        Ok((lock, losses))
    }

    async fn acquire(self, name: String, patience: Patience) {
        let answer = self.try_acquire(&name, patience).await;
        self.answer(answer);
    }

    async fn try_acquire(&self, name: &str, patience: Patience) -> Result<Report, LockError> {
        let (lock, losses) = self.lock(name)?;
        let asked = stamp();
        let guard = lock.try_acquire_for(patience.as_duration()).await?;
        let acquired = stamp();
        Ok(guard.map_or(Report::Refused, |guard| {
            let token = guard.token().map(lock_core::FencingToken::get);
            self.held.lock().insert(name.to_owned(), Held { guard, losses });
            Report::Acquired(Visit { asked, acquired, ended: None, token })
        }))
    }

    async fn enter(self, name: String, lock_use: LockUse) {
        let answer = lock_use.run(&self.client, &name, &self.tell, Arc::clone(&self.leave)).await;
        self.answer(answer);
    }

    async fn release(&self, name: &str) {
        let held = self.held.lock().remove(name);
        let answer = match held {
            Some(held) => held.guard.release().await.map(|()| Report::Released),
            None => Ok(not_held(name)),
        };
        self.answer(answer);
    }

    fn look(&self, name: &str) {
        let report = match self.held.lock().get(name) {
            Some(held) => {
                Report::Standing { is_valid: held.guard.hold().is_valid(), losses: held.losses.lock().len() }
            }
            None => not_held(name),
        };
        (self.tell)(report);
    }

    async fn cycle(&self, name: &str, file: Option<&Path>, times: u32) {
        let mut visits = Vec::new();
        for _ in 0..times {
            // With these reports, a case that waits for the end of all visits can tell a standstill from a slow
            // machine.
            (self.tell)(Report::Progress);
            match self.visit(name, file).await {
                Ok(visit) => visits.push(visit),
                Err(text) => {
                    return (self.tell)(Report::Failed { kind: "Cycle".to_owned(), text });
                }
            }
        }
        (self.tell)(Report::History(visits));
    }

    async fn visit(&self, name: &str, file: Option<&Path>) -> Result<Visit, String> {
        let text = |error: LockError| error.to_string();
        let (lock, losses) = self.lock(name).map_err(text)?;
        let asked = stamp();
        let guard = lock.acquire().await.map_err(text)?;
        let acquired = stamp();
        if let Some(file) = file {
            count_up(file).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        let token = guard.token().map(lock_core::FencingToken::get);
        let released = stamp();
        let ended = losses.lock().first().map_or(released, |lost| released.min(*lost));
        guard.release().await.map_err(text)?;
        Ok(Visit { asked, acquired, ended: Some(ended), token })
    }
}

fn not_held(name: &str) -> Report {
    Report::Failed { kind: "NotHeld".to_owned(), text: format!("the worker does not hold {name:?}") }
}

/// Reads a number and writes the next one. Two processes that do this at once lose a count, which is the purpose. A
/// process that finds the file empty, because another one has just begun to write, loses all counts.
pub(super) fn count_up(file: &Path) -> io::Result<()> {
    let number: u64 = std::fs::read_to_string(file)?.trim().parse().unwrap_or_default();
    thread::yield_now();
    std::fs::write(file, (number + 1).to_string())
}
