//! One attempt to acquire a lock, from the first check of the lock to the grant.
//!
//! ```text
//!   New ── no waiter, lock free ──▶ Granted
//!    │ ╲── Try, otherwise ────────▶ Refused
//!    ▼
//!   Waiting(ticket) ── its turn ──▶ Granted
//! ```
//!
//! The caller's thread does the first check, which is enough if no other attempt wants the lock. The [watcher](crate::watcher)
//! does all later ones. An attempt makes all its decisions in the gate; outside it, it only checks whether the waiter right
//! before it is alive, because until that waiter is gone it is not this attempt's turn. So only the head of the queue decides,
//! whatever the others want: readers that stand next to each other enter one after the other, and each of them wakes the next.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lock_core::spi::Mutex;
use lock_core::{AcquireRequest, LossReason, Mode, Operation, with_waker};

use crate::failure::Failure;
use crate::folder::LockFolder;
use crate::gate::Gate;
use crate::held::Held;
use crate::hold::Hold;
use crate::holders::{self, Asked};
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

/// What to do when another attempt or process holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Busy {
    Leave,
    Queue,
}

/// What an attempt asks for, and what it says about itself.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) subject: Subject,
    pub(crate) mode: Mode,
    /// How many tokens the grant reserves, its own included.
    pub(crate) sections: NonZeroU32,
    pub(crate) record: Record,
}

/// One attempt to acquire a lock.
#[derive(Debug)]
pub(crate) struct Attempt {
    resources: Resources,
    wanted: Wanted,
    busy: Busy,
    handle: AcquireRequest,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    backoff: Option<GateBackoff>,
    /// What the attempt has not reported to the core yet.
    news: Option<News>,
    contact: Contact,
    waker: Option<Waker>,
}

/// What a check finds besides the outcome. The core wakes waiting tasks because of it, so it is reported after the mutex is
/// unlocked.
#[derive(Debug)]
enum News {
    Queued,
    Failure(Failure),
}

/// What the core assumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contact {
    Good,
    /// It is unknown whether the lock is held.
    Troubled,
}

#[derive(Debug)]
enum Phase {
    New,
    Waiting { ticket: Ticket, behind: Behind },
    Granted(Arc<Hold>),
    Refused,
    Failed(Failure),
    Withdrawn,
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
#[derive(Debug, Clone, Copy)]
pub(crate) struct GateBackoff {
    since: Instant,
    pause: Duration,
    reported: Reported,
}

/// Whether the attempt has told the user which process is in the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reported {
    No,
    Yes,
}

impl GateBackoff {
    const FIRST_PAUSE: Duration = Duration::from_micros(50);
    const LONGEST_PAUSE: Duration = Duration::from_millis(20);
    /// After this time the attempt tells the user.
    const REMARKABLE: Duration = Duration::from_millis(50);

    pub(crate) fn since(since: Instant) -> Self {
        Self { since, pause: Self::FIRST_PAUSE, reported: Reported::No }
    }

    /// How long to wait until the next time.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(Self::LONGEST_PAUSE);
        pause
    }

    pub(crate) fn lasts(&self) -> Duration {
        self.since.elapsed()
    }
}

impl Attempt {
    pub(crate) fn new(resources: Resources, wanted: Wanted, busy: Busy, handle: AcquireRequest) -> Self {
        let state =
            State { phase: Phase::New, backoff: None, news: None, contact: Contact::Good, waker: None };
        Self { resources, wanted, busy, handle, state: Mutex::new(state) }
    }

    /// The outcome, if the attempt is over.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.state.lock().phase.outcome()
    }

    /// Waits for the outcome.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        with_waker(context, |waker| {
            let mut state = self.state.lock();
            if let Some(outcome) = state.phase.outcome() {
                return Poll::Ready(outcome);
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
        self.state.lock().backoff = None;
    }

    /// Leaves the queue, and returns the hold if there is one already. Afterwards the attempt can acquire nothing.
    pub(crate) fn withdraw(&self) -> Option<Arc<Hold>> {
        let phase = std::mem::replace(&mut self.state.lock().phase, Phase::Withdrawn);
        match phase {
            Phase::Granted(hold) => Some(hold),
            _ => None,
        }
    }

    /// Turns what the client holds alone into a reader's share. Asked again, it finds the share that it has got.
    pub(crate) fn succeed(&self, former: &Hold, gate: &Gate) -> Result<Standing, Failure> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Granted(_) => return Ok(Standing::Ours),
            Phase::Withdrawn => return Ok(Standing::Lost(LossReason::Deleted)),
            _ => {}
        }
        let own = shares::join_readers(gate, &self.wanted.subject, &self.wanted.record)?;
        let handed_over = former.hand_over(gate);
        match handed_over {
            Ok(Standing::Ours) => state.phase = self.granted(own),
            Ok(Standing::Lost(_)) | Err(_) => own.give_up(gate),
        }
        handed_over
    }

    fn granted(&self, held: Held) -> Phase {
        let Resources { watcher, poll_interval, .. } = &self.resources;
        Phase::Granted(Arc::new(Hold::new(held, self.handle.clone(), *poll_interval, watcher)))
    }

    /// Takes the next step, in the gate.
    fn step(&self, gate: Gate, state: &mut State) -> Next {
        state.backoff = None;
        let (mut ticket, behind) = match std::mem::replace(&mut state.phase, Phase::New) {
            Phase::Waiting { ticket, behind } => (Some(ticket), behind),
            _ => (None, Behind::Holder(None)),
        };
        match self.decide(&gate, &mut ticket) {
            Ok(phase) => {
                state.phase = phase;
                // The ticket goes last: the waiter that its removal wakes wants to enter the gate.
                drop(gate);
                drop(ticket);
            }
            // The folder was removed after this attempt entered the gate, or its new file was: enter the gate of the new folder.
            Err(failure) if failure.is_missing() => return self.knock(state),
            Err(failure) => {
                if let Some(ticket) = ticket {
                    state.phase = Phase::Waiting { ticket, behind };
                }
                return self.fail(state, failure);
            }
        }
        match &state.phase {
            Phase::Waiting { .. } => {
                state.tell(News::Queued);
                self.wait_further(state)
            }
            _ => Next::Over,
        }
    }

    /// Decides what the state of the lock means for this attempt. Removes a ticket that is no longer of use.
    fn decide(&self, gate: &Gate, ticket: &mut Option<Ticket>) -> Result<Phase, Failure> {
        gate.check_layout()?;
        let Wanted { subject, mode, sections, record } = &self.wanted;
        let permits = Permits::of_mode(*mode);
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
            None => match holders::ask(gate, subject, *mode, *sections, record)? {
                Asked::Taken(held) => return Ok(self.granted(held)),
                Asked::Behind(holder) => Behind::Holder(Some(holder)),
            },
        };
        if let Some(holder) = holders::any(gate, subject)? {
            self.handle.held_by(holder);
        }
        if self.busy == Busy::Leave {
            return Ok(Phase::Refused);
        }
        let ticket = match ticket.take() {
            Some(ticket) => ticket,
            None => Ticket::draw(gate, &queue, &waiters, permits, record)?,
        };
        Ok(Phase::Waiting { ticket, behind })
    }

    /// A temporary shortage costs a waiter only time: it keeps its place. Any other failure ends the attempt.
    fn fail(&self, state: &mut State, failure: Failure) -> Next {
        if self.busy == Busy::Queue && failure.is_passing() {
            state.tell(News::Failure(failure));
            return Next::Again(WHEN_TROUBLED);
        }
        state.phase = Phase::Failed(failure);
        Next::Over
    }

    /// Handles a gate that is not free now.
    fn knock(&self, state: &mut State) -> Next {
        let backoff = state.backoff.get_or_insert(GateBackoff::since(Instant::now()));
        let pause = backoff.pause();
        let lasts = backoff.lasts();
        match self.busy {
            Busy::Leave if lasts >= self.resources.gate_patience => {
                state.phase = Phase::Failed(Gate::busy(&self.resources.lock_folder));
                return Next::Over;
            }
            // If the wait ends now, it is unknown whether the lock was free: let the wait end with this error.
            Busy::Queue if lasts >= GateBackoff::REMARKABLE && backoff.reported == Reported::No => {
                backoff.reported = Reported::Yes;
                state.tell(News::Failure(Gate::busy(&self.resources.lock_folder)));
            }
            Busy::Leave | Busy::Queue => {}
        }
        Next::Again(pause)
    }

    fn wait_further(&self, state: &State) -> Next {
        let Phase::Waiting { behind, .. } = &state.phase else {
            return Next::Over;
        };
        let folder = self.resources.lock_folder.folder();
        let otherwise = self.resources.poll_interval;
        match behind {
            Behind::Waiter(waiter) => {
                let path = Members::of_queue(&folder, &self.wanted.subject).path_of(*waiter);
                Next::Watch { path, otherwise }
            }
            Behind::Holder(Some(holder)) => Next::Watch { path: folder.path_of(holder), otherwise },
            Behind::Holder(None) => Next::Again(WHEN_TROUBLED),
        }
    }

    /// Whether the waiter right before this one is alive, so that it cannot be this one's turn yet.
    fn is_behind_a_living_waiter(&self, state: &State) -> bool {
        match &state.phase {
            Phase::Waiting { ticket, behind: Behind::Waiter(waiter) } => {
                let queue = Members::of_queue(ticket.folder(), &self.wanted.subject);
                // In a folder that was moved away the order of waiters no longer matters.
                ticket.folder().is_current() && queue.is_alive(*waiter).unwrap_or(false)
            }
            _ => false,
        }
    }
}

impl State {
    fn tell(&mut self, news: News) {
        self.contact = match &news {
            News::Queued => Contact::Good,
            News::Failure(_) => Contact::Troubled,
        };
        self.news = Some(news);
    }
}

impl Phase {
    fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::New | Self::Waiting { .. } => None,
            Self::Granted(hold) => Some(Outcome::Granted(Arc::clone(hold))),
            Self::Failed(failure) => Some(Outcome::Failed(failure.clone())),
            Self::Refused | Self::Withdrawn => Some(Outcome::Refused),
        }
    }
}

impl WatchedTask for Attempt {
    fn check(&self) -> Next {
        let mut state = self.state.lock();
        if state.phase.outcome().is_some() {
            return Next::Over;
        }
        let next = if self.is_behind_a_living_waiter(&state) {
            if state.contact == Contact::Troubled {
                state.tell(News::Queued);
            }
            self.wait_further(&state)
        } else {
            match Gate::enter(&self.resources.lock_folder) {
                Ok(Some(gate)) => self.step(gate, &mut state),
                Ok(None) => self.knock(&mut state),
                Err(failure) => self.fail(&mut state, failure),
            }
        };
        let news = state.news.take();
        let waker = state.phase.outcome().and_then(|_| state.waker.take());
        drop(state);
        match news {
            Some(News::Queued) => self.handle.queued(),
            Some(News::Failure(failure)) => {
                self.handle.unreachable(failure.into_error(Operation::Acquire, None));
            }
            None => {}
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        next
    }
}
