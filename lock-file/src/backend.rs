//! Implements the core's [`Backend`] with the files of a folder.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::spi::Mutex;
use lock_core::{
    AcquireRequest, AttemptId, Backend, BackendContext, Breaking, Broken, Capabilities, CharacterSet,
    Downgraded, Fairness, Fencing, Grant, GroupId, HolderId, HolderInfo, InspectRequest, Inspection,
    LeaseState, LockError, LockName, LockStatus, LossReason, Memo, NameRules, Operation, PermitLimits, Reach,
    Recall, Released, Remembered, Reserving, Term, Updated,
};

use crate::attempt::{Attempt, Outcome, Resources};
use crate::failure::Failure;
use crate::folder::LockFolder;
use crate::gate::Gate;
use crate::gated_action;
use crate::hold::Hold;
use crate::holders;
use crate::locked_file::Standing;
use crate::members::{Member, Members};
use crate::options::FileOptions;
use crate::slots;
use crate::subject::Subject;
use crate::sweep::{find, sweep};
use crate::watcher::{Registration, WatchedTask, Watcher};

/// Longer names become a readable prefix and a hash. File systems allow 255 bytes, some encrypted ones 143.
const LONGEST_NAME: usize = 140;

/// How long the calling thread keeps trying to enter the gate before it leaves that to the watcher.
const IMPATIENCE: Duration = Duration::from_micros(100);

/// Locks between the processes of one machine, in the files of a folder, as the crate's documentation describes.
pub(crate) struct FileBackend {
    resources: Resources,
    context: BackendContext,
    capabilities: Capabilities,
    attempts: Mutex<HashMap<AttemptId, PendingAttempt>>,
}

struct PendingAttempt {
    attempt: Arc<Attempt>,
    /// Makes the watcher serve the attempt while it waits.
    registration: Option<Registration>,
}

/// A lock that this client holds.
#[derive(Debug)]
pub(crate) struct FileLease {
    id: AttemptId,
    subject: Subject,
    hold: Arc<Hold>,
}

impl FileBackend {
    /// Opens the folder, and creates it if it does not exist.
    pub(crate) fn open(options: &FileOptions, context: BackendContext) -> Result<Self, LockError> {
        let connect = |failure: Failure| failure.into_error(Operation::Connect, None);
        let resources = Resources {
            lock_folder: Arc::new(LockFolder::open(&options.folder).map_err(connect)?),
            watcher: Watcher::of_process().map_err(connect)?,
            poll_interval: options.poll_interval,
            gate_patience: options.gate_patience,
        };
        if let Some(gate) = Gate::enter(&resources.lock_folder).map_err(connect)? {
            gate.check_layout().map_err(connect)?;
            sweep(&gate);
        }
        Ok(Self { resources, context, capabilities: capabilities(), attempts: Mutex::default() })
    }

    /// The attempt with the request's id: the existing one, or one that begins now.
    fn attempt_of(&self, request: &AcquireRequest) -> Arc<Attempt> {
        if let Some(attempt) = self.known(request.id()) {
            return attempt;
        }
        let attempt = self.make(request);
        self.begin(request.id(), &attempt);
        attempt
    }

    fn known(&self, id: AttemptId) -> Option<Arc<Attempt>> {
        self.attempts.lock().get(&id).map(|pending| Arc::clone(&pending.attempt))
    }

    fn make(&self, request: &AcquireRequest) -> Arc<Attempt> {
        let attempt = Arc::new(Attempt::new(self.resources.clone(), request.clone()));
        let pending = PendingAttempt { attempt: Arc::clone(&attempt), registration: None };
        self.attempts.lock().insert(request.id(), pending);
        attempt
    }

    /// Checks at once, on this thread, and leaves the rest to the watcher if that decides nothing.
    fn begin(&self, id: AttemptId, attempt: &Arc<Attempt>) {
        attempt.first_look(IMPATIENCE);
        if attempt.outcome().is_none() {
            let task = Arc::clone(attempt) as Arc<dyn WatchedTask>;
            let registration = self.resources.watcher.register(task, Duration::ZERO);
            if let Some(pending) = self.attempts.lock().get_mut(&id) {
                pending.registration = Some(registration);
            }
        }
    }

    fn forget(&self, id: AttemptId) -> Option<PendingAttempt> {
        self.attempts.lock().remove(&id)
    }

    /// Releases a lock. Never waits long for the gate: the lock becomes free in any case, and only its file may stay for a while.
    fn give_back(&self, hold: &Hold, subject: &Subject) -> Result<Standing, Failure> {
        let gate = enter_soon(&self.resources.lock_folder);
        let standing = hold.release(gate.as_ref())?;
        let cleaned = gate.as_ref().map(|gate| Members::of_queue(gate.folder(), subject).clean());
        if !matches!(cleaned, Some(Ok(_))) {
            self.clean_later(subject);
        }
        Ok(standing)
    }

    /// Cleans the lock up as soon as the gate is free.
    fn clean_later(&self, subject: &Subject) {
        let (resources, subject) = (self.resources.clone(), subject.clone());
        self.context.spawn(async move {
            // A file that cannot be removed now is reused, or a later sweep finds it.
            let _ = gated_action::run(&resources, move |gate| holders::clean(gate, &subject)).await;
        });
    }
}

fn grant(request: &AcquireRequest, hold: Arc<Hold>) -> Grant<FileLease> {
    let (token, sections) = (Some(hold.token()), request.sections());
    let descriptor = Some(Arc::clone(hold.descriptor()));
    let lease = FileLease { id: request.id(), subject: Subject::of_request(request), hold };
    Grant { token, sections, descriptor, ..Grant::new(lease, GroupId::new(0), Term::UntilReported) }
}

/// Enters the gate if that does not block the calling thread for long.
fn enter_soon(lock_folder: &LockFolder) -> Option<Gate> {
    let start = Instant::now();
    loop {
        match Gate::enter(lock_folder) {
            Ok(Some(gate)) => return Some(gate),
            Ok(None) if start.elapsed() < IMPATIENCE => std::thread::yield_now(),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// The most tokens of one grant. They follow the clock, and so many last for a millisecond.
const MOST_SECTIONS: NonZeroU32 = NonZeroU32::new(1000).unwrap();

fn capabilities() -> Capabilities {
    // Lower-case letters only, because some file systems do not distinguish `A` from `a`.
    let names = NameRules::new(CharacterSet::PORTABLE_LOWER_CASE, LONGEST_NAME);
    Capabilities::new("file", Reach::Machine, names)
        .with_fencing(Fencing::Durable)
        .with_fairness(Fairness::Fifo)
        .with_inspection(Inspection::HolderAndQueue)
        .with_breaking(Breaking::Supported)
        .with_describing()
        .with_listing()
        .with_remembering()
        .with_reserving(Reserving::AtMost(MOST_SECTIONS))
        .with_shared()
        .with_permits(PermitLimits::NONE)
}

fn status(gate: &Gate, name: LockName, subject: &Subject) -> Result<(LockStatus, Vec<Member>), Failure> {
    let mut status = LockStatus::free(name);
    status.holders = holders::all(gate, subject)?;
    let waiting = Members::of_queue(gate.folder(), subject).list()?;
    Ok((status, waiting))
}

/// The request to inspect what has files, by the name that one of them tells.
fn request(gate: &Gate, subject: &Subject, rules: NameRules) -> Option<InspectRequest> {
    let found = subject.inspection().ok()?;
    let name = holders::name_of(gate, subject).and_then(|name| LockName::new(name).ok());
    let told = name.map(|name| InspectRequest::new(name.clone(), rules.apply(&name)).about(found.kind()));
    Some(told.filter(|told| told.physical() == found.physical()).unwrap_or(found))
}

impl Backend for FileBackend {
    type Lease = FileLease;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<FileLease>>, LockError> {
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
        Ok(Some(grant(request, hold)))
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        let Some(attempt) = self.known(request.id()) else { return Ok(()) };
        if let Some(hold) = attempt.withdraw() {
            self.give_back(&hold, &Subject::of_request(request))
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
            .give_back(&lease.hold, &lease.subject)
            .map_err(|failure| failure.into_error(Operation::Release, None))?;
        self.forget(lease.id);
        Ok(match standing {
            Standing::Ours => Released::Clean,
            Standing::Lost(reason) => Released::WasLost(reason),
        })
    }

    async fn downgrade(
        &self,
        lease: &FileLease,
        request: &AcquireRequest,
    ) -> Result<Downgraded<FileLease>, LockError> {
        let attempt = self.known(request.id()).unwrap_or_else(|| self.make(request));
        let (reader, former) = (Arc::clone(&attempt), Arc::clone(&lease.hold));
        let standing = gated_action::run(&self.resources, move |gate| reader.succeed(&former, gate))
            .await
            .map_err(|failure| failure.into_error(Operation::Downgrade, Some(request.name())))?;
        match (standing, attempt.outcome()) {
            (Standing::Ours, Some(Outcome::Granted(hold))) => {
                self.forget(lease.id);
                Ok(Downgraded::Shared(grant(request, hold)))
            }
            (Standing::Lost(reason), _) => {
                self.forget(request.id());
                Ok(Downgraded::WasLost(reason))
            }
            // It was cancelled meanwhile.
            (Standing::Ours, _) => Ok(Downgraded::WasLost(LossReason::Deleted)),
        }
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        let error = |failure: Failure| failure.into_error(Operation::Inspect, Some(request.name()));
        let (name, subject) = (request.name().clone(), Subject::of_inspection(request));
        let inspected = subject.clone();
        let (mut status, waiting) =
            gated_action::run(&self.resources, move |gate| status(gate, name, &inspected))
                .await
                .map_err(error)?;
        let folder = self.resources.lock_folder.folder();
        status.waiters = Members::of_queue(&folder, &subject).waiters(&waiting).map_err(error)?;
        Ok(status)
    }

    async fn list(&self) -> Result<Vec<InspectRequest>, LockError> {
        let rules = self.capabilities.names;
        let found = gated_action::run(&self.resources, move |gate| {
            Ok(find(gate.folder())?.iter().filter_map(|subject| request(gate, subject, rules)).collect())
        });
        let found = found.await;
        found.map_err(|failure| failure.into_error(Operation::Inspect, None))
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        let (id, subject) = (holder.as_str().to_owned(), Subject::of_inspection(request));
        let taken =
            gated_action::run(&self.resources, move |gate| holders::break_holder(gate, &subject, &id))
                .await
                .map_err(|failure| failure.into_error(Operation::Break, Some(request.name())))?;
        Ok(if taken { Broken::taken_away() } else { Broken::not_held() })
    }

    async fn update_holder(&self, lease: &FileLease, holder: &HolderInfo) -> Result<Updated, LockError> {
        let (hold, value) = (Arc::clone(&lease.hold), holder.value.clone());
        let standing = gated_action::run(&self.resources, move |_| hold.show(value))
            .await
            .map_err(|failure| failure.into_error(Operation::Describe, None))?;
        Ok(match standing {
            Standing::Ours => Updated::Done,
            Standing::Lost(reason) => Updated::Lost(reason),
        })
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        let key = memo.key();
        gated_action::run(&self.resources, move |gate| slots::remember(gate, &key, keep))
            .await
            .map_err(|failure| failure.into_error(Operation::Remember, Some(memo.name())))
    }

    async fn recall(&self, memo: &Memo, recall: Recall) -> Result<Option<Duration>, LockError> {
        let key = memo.key();
        gated_action::run(&self.resources, move |gate| slots::recall(gate, &key, recall))
            .await
            .map_err(|failure| failure.into_error(Operation::Remember, Some(memo.name())))
    }

    async fn ping(&self) -> Result<(), LockError> {
        gated_action::run(&self.resources, |gate| gate.folder().check_writable())
            .await
            .map_err(|failure| failure.into_error(Operation::Ping, None))
    }

    async fn close(&self) {
        let work = gated_action::run(&self.resources, |gate| {
            gate.folder().remove_kept_folders();
            sweep(gate);
            Ok(())
        });
        if let Err(failure) = work.await {
            tracing::debug!(target: "distlock", ?failure, "files of locks were left for others to clean up");
        }
    }
}

impl fmt::Debug for FileBackend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FileBackend")
            .field("folder", &self.resources.lock_folder.folder().path())
            .field("holder", self.context.holder())
            .finish_non_exhaustive()
    }
}
