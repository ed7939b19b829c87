//! Implements the core's [`Backend`] with the files of a folder.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lock_core::spi::Mutex;
use lock_core::{
    AcquireRequest, AttemptId, Backend, BackendContext, Breaking, Broken, Capabilities, CharacterSet,
    Describing, ErrorKind, Fairness, Fencing, Grant, GroupId, HolderId, HolderInfo, InspectRequest,
    Inspection, LeaseState, LockError, LockName, LockStatus, Memo, Mode, NameRules, Operation, Reach,
    Released, Remembered, Remembering, Term, Updated, Wait,
};

use crate::attempt::{Attempt, Busy, Means, Outcome};
use crate::errand;
use crate::failure::Failure;
use crate::folder::Place;
use crate::gate::Gate;
use crate::held::{self, Standing};
use crate::hold::Hold;
use crate::memos;
use crate::options::FileOptions;
use crate::queue::Queue;
use crate::record::Record;
use crate::tidier::{self, Tidier};
use crate::watcher::{Care, Sleeper, Watcher};

/// Longer names become a readable prefix and a hash. File systems allow 255 bytes, some encrypted ones 143.
const LONGEST_NAME: usize = 140;

/// How long the calling thread keeps trying to enter the gate before it leaves that to the watcher.
const IMPATIENCE: Duration = Duration::from_micros(100);

/// Locks between the processes of one machine, in the files of a folder, as the crate's documentation describes.
pub struct FileBackend {
    means: Means,
    context: BackendContext,
    capabilities: Capabilities,
    tidier: Arc<Tidier>,
    attempts: Mutex<HashMap<AttemptId, Entry>>,
}

struct Entry {
    attempt: Arc<Attempt>,
    /// Makes the watcher serve the attempt while it waits.
    care: Option<Care>,
}

/// A lock that this client holds.
#[derive(Debug)]
pub struct FileLease {
    id: AttemptId,
    physical: String,
    hold: Arc<Hold>,
}

impl FileBackend {
    /// Opens the folder, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] when the folder, or something in it, is a symbolic link, belongs to another user, can be used by
    /// others, is on a network file system or cannot be written to; [`ErrorKind::InvalidOption`] for a path that is not
    /// absolute or a `poll_interval` of zero; [`ErrorKind::Server`] when a system call fails, for example on a full disk.
    pub fn open(options: &FileOptions, context: BackendContext) -> Result<Self, LockError> {
        options.check()?;
        let connect = |failure: Failure| failure.into_error(Operation::Connect, None);
        let means = Means {
            place: Arc::new(Place::open(&options.folder).map_err(connect)?),
            watcher: Watcher::of_process().map_err(connect)?,
            poll_interval: options.poll_interval,
            gate_patience: options.gate_patience,
        };
        if let Some(gate) = Gate::enter(&means.place).map_err(connect)? {
            tidier::sweep(&gate);
        }
        let tidier = Arc::new(Tidier::new(means.clone()));
        Ok(Self { means, context, capabilities: capabilities(), tidier, attempts: Mutex::default() })
    }

    /// The attempt with the request's id: the existing one, or a new one.
    fn attempt_of(&self, request: &AcquireRequest) -> Arc<Attempt> {
        if let Some(entry) = self.attempts.lock().get(&request.id()) {
            return Arc::clone(&entry.attempt);
        }
        let busy = if request.wait() == Wait::Try { Busy::Leave } else { Busy::Queue };
        let record = Record::new(request.id().to_string(), request.name().as_str(), request.holder());
        let physical = request.physical().as_str();
        let attempt =
            Arc::new(Attempt::new(self.means.clone(), physical, record, busy, request.attempt().clone()));
        self.attempts.lock().insert(request.id(), Entry { attempt: Arc::clone(&attempt), care: None });
        self.begin(request.id(), &attempt);
        attempt
    }

    /// Checks at once, on this thread, and leaves the rest to the watcher if that decides nothing.
    fn begin(&self, id: AttemptId, attempt: &Arc<Attempt>) {
        attempt.first_look(IMPATIENCE);
        if attempt.outcome().is_none() {
            let sleeper = Arc::clone(attempt) as Arc<dyn Sleeper>;
            let care = self.means.watcher.look_after(sleeper, Duration::ZERO);
            if let Some(entry) = self.attempts.lock().get_mut(&id) {
                entry.care = Some(care);
            }
        }
    }

    fn forget(&self, id: AttemptId) -> Option<Entry> {
        self.attempts.lock().remove(&id)
    }

    /// Releases a lock. Never waits long for the gate: the lock becomes free in any case, and only its file may stay for a while.
    fn give_back(&self, hold: &Hold, physical: &str) -> Result<Standing, Failure> {
        let gate = enter_soon(&self.means.place);
        let standing = hold.release(gate.as_ref())?;
        let tidied = gate.as_ref().map(|gate| Queue::of(gate.folder(), physical).tidy());
        if !matches!(tidied, Some(Ok(()))) {
            self.tidier.later(physical);
        }
        Ok(standing)
    }
}

/// Enters the gate if that does not block the calling thread for long.
fn enter_soon(place: &Place) -> Option<Gate> {
    let start = Instant::now();
    loop {
        match Gate::enter(place) {
            Ok(Some(gate)) => return Some(gate),
            Ok(None) if start.elapsed() < IMPATIENCE => std::thread::yield_now(),
            Ok(None) | Err(_) => return None,
        }
    }
}

fn capabilities() -> Capabilities {
    // Lower-case letters only, because some file systems do not distinguish `A` from `a`.
    let names = NameRules::new(CharacterSet::PORTABLE_LOWER_CASE, LONGEST_NAME);
    Capabilities::new("file", Reach::Machine, names)
        .with_fencing(Fencing::Durable)
        .with_fairness(Fairness::Fifo)
        .with_inspection(Inspection::HolderAndQueue)
        .with_breaking(Breaking::Supported)
        .with_describing(Describing::Supported)
        .with_remembering(Remembering::Supported)
}

fn status(gate: &Gate, name: LockName, physical: &str) -> Result<(LockStatus, Vec<u64>), Failure> {
    let mut status = LockStatus::free(name);
    status.holders = held::holder(gate, physical)?.into_iter().collect();
    let waiting = Queue::of(gate.folder(), physical).numbers()?;
    Ok((status, waiting))
}

#[async_trait]
impl Backend for FileBackend {
    type Lease = FileLease;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<FileLease>>, LockError> {
        if request.mode() != Mode::Exclusive {
            return Err(LockError::new(ErrorKind::Unsupported, Operation::Acquire)
                .on(request.name())
                .because("locks of files are exclusive"));
        }
        let attempt = self.attempt_of(request);
        let hold = match poll_fn(|context| attempt.poll(context)).await {
            Outcome::Granted(hold) => hold,
            Outcome::Refused => {
                self.forget(request.id());
                return Ok(None);
            }
            Outcome::Failed(failure) => {
                self.forget(request.id());
                return Err(failure.into_error(Operation::Acquire, Some(request.name())));
            }
        };
        let token = hold.token();
        let descriptor = Arc::clone(hold.descriptor());
        let lease = FileLease { id: request.id(), physical: request.physical().as_str().to_owned(), hold };
        Ok(Some(
            Grant::new(lease, GroupId::new(0), Term::UntilReported)
                .with_token(token)
                .with_descriptor(descriptor),
        ))
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        let Some(entry) = self.attempts.lock().get(&request.id()).map(|entry| Arc::clone(&entry.attempt))
        else {
            return Ok(());
        };
        if let Some(hold) = entry.withdraw() {
            self.give_back(&hold, request.physical().as_str())
                .map_err(|failure| failure.into_error(Operation::Cancel, Some(request.name())))?;
        }
        self.forget(request.id());
        Ok(())
    }

    async fn renew(&self, _: GroupId, leases: &[Arc<FileLease>]) -> Result<Vec<LeaseState>, LockError> {
        // There are no leases: a holder keeps the lock until its process is gone. The watcher reports a loss.
        Ok(leases.iter().map(|_| LeaseState::Held).collect())
    }

    async fn release(&self, lease: &FileLease) -> Result<Released, LockError> {
        let standing = self
            .give_back(&lease.hold, &lease.physical)
            .map_err(|failure| failure.into_error(Operation::Release, None))?;
        self.forget(lease.id);
        Ok(match standing {
            Standing::Ours => Released::Clean,
            Standing::Lost(reason) => Released::WasLost(reason),
        })
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        let error = |failure: Failure| failure.into_error(Operation::Inspect, Some(request.name()));
        let (name, physical) = (request.name().clone(), request.physical().as_str().to_owned());
        let (mut status, waiting) =
            errand::run(&self.means, move |gate| status(gate, name, &physical)).await.map_err(error)?;
        let folder = self.means.place.folder();
        let waiters = Queue::of(&folder, request.physical().as_str()).records(&waiting).map_err(error)?;
        status.waiters = waiters.iter().map(Record::participant).collect();
        Ok(status)
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        let (id, physical) = (holder.as_str().to_owned(), request.physical().as_str().to_owned());
        let taken = errand::run(&self.means, move |gate| held::break_holder(gate, &physical, &id))
            .await
            .map_err(|failure| failure.into_error(Operation::Break, Some(request.name())))?;
        Ok(if taken { Broken::taken_away() } else { Broken::not_held() })
    }

    async fn update_holder(&self, lease: &FileLease, holder: &HolderInfo) -> Result<Updated, LockError> {
        let (hold, value) = (Arc::clone(&lease.hold), holder.value.clone());
        let standing = errand::run(&self.means, move |_| hold.show(value))
            .await
            .map_err(|failure| failure.into_error(Operation::Describe, None))?;
        Ok(match standing {
            Standing::Ours => Updated::Done,
            Standing::Lost(reason) => Updated::Lost(reason),
        })
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        let key = memo.key();
        errand::run(&self.means, move |gate| memos::remember(gate, &key, keep))
            .await
            .map_err(|failure| failure.into_error(Operation::Remember, Some(memo.name())))
    }

    async fn ping(&self) -> Result<(), LockError> {
        errand::run(&self.means, |gate| gate.folder().check_writable())
            .await
            .map_err(|failure| failure.into_error(Operation::Ping, None))
    }

    async fn close(&self) {
        let tidier = Arc::clone(&self.tidier);
        let work = errand::run(&self.means, move |gate| {
            tidier.finish(gate);
            tidier::sweep(gate);
            Ok(())
        });
        if let Err(failure) = work.await {
            tracing::debug!(target: "distlock", ?failure, "files of locks were left for others to tidy up");
        }
    }
}

impl Drop for FileBackend {
    fn drop(&mut self) {
        self.tidier.dismiss();
    }
}

impl fmt::Debug for FileBackend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FileBackend")
            .field("folder", &self.means.place.folder().path())
            .field("holder", self.context.holder())
            .finish_non_exhaustive()
    }
}
