//! One attempt to acquire a lock, from the first check of the lock to the grant.
//!
//! ```text
//!   New ── no waiter, lock free ──▶ Granted
//!    │ ╲── Wait::Try, otherwise ──▶ Refused
//!    ▼
//!   Waiting(ticket) ── its turn ──▶ Granted
//! ```
//!
//! The caller's thread does the first check, which is enough if no other attempt wants the lock. The [watcher](crate::watcher)
//! does all later ones. An attempt makes all its decisions in the gate; outside it, it only checks whether the waiter right
//! before it is alive, because until that waiter is gone it is not this attempt's turn. So only the head of the queue decides,
//! whatever the others want: readers that stand next to each other enter one after the other, and each of them wakes the next.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lock_core::spi::Mutex;
use lock_core::spi::with_waker;
use lock_core::{AcquireRequest, Backoff, LossReason, Operation, Participant, Wait};

use crate::failure::Failure;
use crate::folder::LockFolder;
use crate::gate::Gate;
use crate::hold::Hold;
use crate::holders::{self, Asked, Held};
use crate::locked_file::Standing;
use crate::members::{Member, Members, Permits};
use crate::queue::Ticket;
use crate::record::Record;
use crate::shares;
use crate::subject::Subject;
use crate::watcher::{Next, WatchedTask, Watcher};

/// What an attempt needs.
#[derive(Debug, Clone)]
pub(crate) struct Resources {
    pub(crate) lock_folder: Arc<LockFolder>,
    pub(crate) watcher: Arc<Watcher>,
    pub(crate) poll_interval: Duration,
    pub(crate) gate_patience: Duration,
}

/// How long to wait before the next check when one has failed.
const WHEN_TROUBLED: Duration = Duration::from_millis(100);

/// One attempt to acquire a lock.
#[derive(Debug)]
pub(crate) struct Attempt {
    resources: Resources,
    request: AcquireRequest,
    subject: Subject,
    /// What it says about itself.
    record: Record,
    state: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    phase: Phase,
    knocking: Option<Knocking>,
    waker: Option<Waker>,
}

/// What a check finds besides the outcome. The core wakes waiting tasks because of it, which is code of users, so it is reported
/// outside the gate, and after the mutex is unlocked.
#[derive(Default)]
struct News {
    holder: Option<Participant>,
    /// Whether the lock is certainly held.
    contact: Option<Result<(), Failure>>,
}

#[derive(Debug)]
enum Phase {
    New,
    Waiting { ticket: Ticket, behind: Behind },
    Over(Outcome),
}

/// What a waiter waits for.
#[derive(Debug, Clone)]
enum Behind {
    /// The end of the waiter right before it.
    Waiter(Member),
    /// A change of this file, or of what is in this folder: a holder's end. None before the first decision.
    Holder(Option<String>),
}

/// How an attempt ended.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    Granted(Arc<Hold>),
    Refused,
    Failed(Failure),
}

/// Repeated attempts to enter the gate while another process or thread is in it.
#[derive(Debug)]
pub(crate) struct Knocking {
    since: Instant,
    pauses: Backoff,
    /// The user has been told which process is in the gate.
    is_told: bool,
}

impl Knocking {
    /// After this time the attempt tells the user.
    const REMARKABLE: Duration = Duration::from_millis(50);

    pub(crate) fn begin() -> Self {
        let pauses = Backoff::new(Duration::from_micros(50), Duration::from_millis(20));
        Self { since: Instant::now(), pauses, is_told: false }
    }

    /// How long to wait until the next time.
    pub(crate) fn pause(&mut self) -> Duration {
        self.pauses.next_pause()
    }

    pub(crate) fn lasts(&self) -> Duration {
        self.since.elapsed()
    }
}

impl Attempt {
    pub(crate) fn new(resources: Resources, request: AcquireRequest) -> Self {
        let (subject, record) = (Subject::of_request(&request), Record::of_request(&request));
        let state = Mutex::new(Progress { phase: Phase::New, knocking: None, waker: None });
        Self { resources, request, subject, record, state }
    }

    /// The outcome, if the attempt is over.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.state.lock().phase.outcome().cloned()
    }

    /// Waits for the outcome.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        with_waker(context, |waker| {
            let mut state = self.state.lock();
            if let Some(outcome) = state.phase.outcome() {
                return Poll::Ready(outcome.clone());
            }
            std::mem::swap(&mut state.waker, waker);
            Poll::Pending
        })
    }

    /// The first check, on the caller's thread. Keeps trying to enter the gate for a moment, since it is usually free again
    /// soon.
    pub(crate) fn first_look(&self, impatience: Duration) {
        let start = Instant::now();
        while let Next::Again(_) = self.check() {
            if start.elapsed() >= impatience {
                break;
            }
            std::thread::yield_now();
        }
        self.state.lock().knocking = None;
    }

    /// Leaves the queue, and returns the hold if there is one already. Afterwards the attempt can acquire nothing.
    pub(crate) fn withdraw(&self) -> Option<Arc<Hold>> {
        let phase = std::mem::replace(&mut self.state.lock().phase, Phase::Over(Outcome::Refused));
        match phase {
            Phase::Over(Outcome::Granted(hold)) => Some(hold),
            _ => None,
        }
    }

    /// Turns what the client holds alone into a reader's share. Asked again, it finds the share that it has got.
    pub(crate) fn succeed(&self, former: &Hold, gate: &Gate) -> Result<Standing, Failure> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Over(Outcome::Granted(_)) => return Ok(Standing::Ours),
            Phase::Over(_) => return Ok(Standing::Lost(LossReason::Deleted)),
            _ => {}
        }
        let own = shares::join_readers(gate, &self.subject, &self.record)?;
        let handed_over = former.hand_over(gate);
        match handed_over {
            Ok(Standing::Ours) => state.phase = self.granted(own),
            Ok(Standing::Lost(_)) | Err(_) => own.file.give_up(gate),
        }
        handed_over
    }

    fn granted(&self, held: Held) -> Phase {
        let Resources { watcher, poll_interval, .. } = &self.resources;
        let new = Hold::new(held, self.request.clone(), *poll_interval, watcher);
        Phase::Over(Outcome::Granted(Arc::new(new)))
    }

    /// Takes the next step, in the gate.
    fn step(&self, gate: Gate, state: &mut Progress, news: &mut News) -> Next {
        state.knocking = None;
        let (mut ticket, behind) = match std::mem::replace(&mut state.phase, Phase::New) {
            Phase::Waiting { ticket, behind } => (Some(ticket), behind),
            _ => (None, Behind::Holder(None)),
        };
        match self.decide(&gate, &mut ticket, news) {
            Ok(phase) => {
                state.phase = phase;
                // The ticket goes last: the waiter that its removal wakes wants to enter the gate.
                drop(gate);
                drop(ticket);
                self.wait_further(state, news)
            }
            // The folder was removed after this attempt entered the gate, or its new file was: enter the gate of the new folder.
            Err(failure) if failure.is_missing() => self.knock(state, news),
            Err(failure) => {
                if let Some(ticket) = ticket {
                    state.phase = Phase::Waiting { ticket, behind };
                }
                self.fail(state, failure, news)
            }
        }
    }

    /// Decides what the state of the lock means for this attempt. Removes a ticket that is no longer of use.
    fn decide(&self, gate: &Gate, ticket: &mut Option<Ticket>, news: &mut News) -> Result<Phase, Failure> {
        gate.check_layout()?;
        let Self { request, subject, record, .. } = self;
        let permits = Permits::of_mode(request.mode());
        let queue = Members::of_queue(gate.folder(), subject);
        let waiters = queue.list()?;
        // A ticket whose file is gone has no place in the order: draw another.
        if ticket.as_ref().is_some_and(|ticket| !waiters.contains(&ticket.member())) {
            *ticket = None;
        }
        let ahead = match &*ticket {
            Some(ticket) => &waiters[..waiters.partition_point(|waiter| *waiter < ticket.member())],
            None => &waiters[..],
        };
        let behind = match queue.last_alive(ahead)? {
            Some(waiter) => {
                waiter.check_size(permits)?;
                Behind::Waiter(waiter)
            }
            None => match holders::ask(gate, subject, request, record)? {
                Asked::Taken(held) => return Ok(self.granted(held)),
                Asked::Behind(holder) => Behind::Holder(Some(holder)),
            },
        };
        news.holder = holders::any(gate, subject)?;
        if request.wait() == Wait::Try {
            return Ok(Phase::Over(Outcome::Refused));
        }
        let ticket = match ticket.take() {
            Some(ticket) => ticket,
            None => Ticket::draw(gate, &queue, &waiters, permits, record)?,
        };
        Ok(Phase::Waiting { ticket, behind })
    }

    /// A temporary shortage costs a waiter only time: it keeps its place. Any other failure ends the attempt.
    fn fail(&self, state: &mut Progress, failure: Failure, news: &mut News) -> Next {
        if self.request.wait() != Wait::Try && failure.is_passing() {
            news.contact = Some(Err(failure));
            return Next::Again(WHEN_TROUBLED);
        }
        state.phase = Phase::Over(Outcome::Failed(failure));
        Next::Over
    }

    /// Handles a gate that is not free now.
    fn knock(&self, state: &mut Progress, news: &mut News) -> Next {
        let Resources { lock_folder, gate_patience, .. } = &self.resources;
        let knocking = state.knocking.get_or_insert_with(Knocking::begin);
        let lasts = knocking.lasts();
        if self.request.wait() == Wait::Try {
            if lasts >= *gate_patience {
                state.phase = Phase::Over(Outcome::Failed(Gate::busy(lock_folder)));
                return Next::Over;
            }
        } else if lasts >= Knocking::REMARKABLE && !knocking.is_told {
            // If the wait ends now, it is unknown whether the lock was free: let the wait end with this error.
            knocking.is_told = true;
            news.contact = Some(Err(Gate::busy(lock_folder)));
        }
        Next::Again(knocking.pause())
    }

    /// It is certain that the lock is held.
    fn wait_further(&self, state: &Progress, news: &mut News) -> Next {
        let Phase::Waiting { behind, .. } = &state.phase else { return Next::Over };
        news.contact = Some(Ok(()));
        let folder = self.resources.lock_folder.folder();
        let otherwise = self.resources.poll_interval;
        match behind {
            Behind::Waiter(waiter) => {
                let path = Members::of_queue(&folder, &self.subject).path_of(*waiter);
                Next::Watch { path, otherwise }
            }
            Behind::Holder(Some(holder)) => Next::Watch { path: folder.path_of(holder), otherwise },
            Behind::Holder(None) => Next::Again(WHEN_TROUBLED),
        }
    }

    /// Whether the waiter right before this one is alive, so that it cannot be this one's turn yet.
    fn is_behind_a_living_waiter(&self, state: &Progress) -> bool {
        match &state.phase {
            Phase::Waiting { ticket, behind: Behind::Waiter(waiter) } => {
                let queue = Members::of_queue(ticket.folder(), &self.subject);
                // In a folder that was moved away the order of waiters no longer matters.
                ticket.folder().is_current() && queue.is_alive(*waiter).unwrap_or(false)
            }
            _ => false,
        }
    }
}

impl Phase {
    fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::New | Self::Waiting { .. } => None,
            Self::Over(outcome) => Some(outcome),
        }
    }
}

impl News {
    fn report(self, request: &AcquireRequest) {
        if let Some(holder) = self.holder {
            request.held_by(holder);
        }
        match self.contact {
            Some(Ok(())) => request.queued(),
            Some(Err(failure)) => request.unreachable(failure.into_error(Operation::Acquire, None)),
            None => {}
        }
    }
}

impl WatchedTask for Attempt {
    fn check(&self) -> Next {
        let mut news = News::default();
        let mut state = self.state.lock();
        if state.phase.outcome().is_some() {
            return Next::Over;
        }
        let next = if self.is_behind_a_living_waiter(&state) {
            self.wait_further(&state, &mut news)
        } else {
            match Gate::enter(&self.resources.lock_folder) {
                Ok(Some(gate)) => self.step(gate, &mut state, &mut news),
                Ok(None) => self.knock(&mut state, &mut news),
                Err(failure) => self.fail(&mut state, failure, &mut news),
            }
        };
        let waker = state.phase.outcome().is_some().then(|| state.waker.take()).flatten();
        drop(state);
        news.report(&self.request);
        if let Some(waker) = waker {
            waker.wake();
        }
        next
    }
}
