//! One attempt at a lock, from the first look to the grant.
//!
//! ```text
//!   New ── nobody ahead, lock free ──▶ Granted
//!    │ ╲── Try, and somebody is ───▶ Refused
//!    ▼
//!   Waiting(ticket) ── its turn ───▶ Granted
//! ```
//!
//! The first look is made on the caller's thread, and is all there is when nobody else wants the lock. Every later one
//! is made by the [watcher](crate::watcher). All decisions are made in the gate; outside it an attempt only looks whether
//! the waiter right before it still lives, because as long as that is so it is not its turn.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lock_core::{Operation, Signals, with_waker};

use crate::folder::Place;
use crate::gate::Gate;
use crate::held;
use crate::hold::Hold;
use crate::queue::{Queue, Ticket};
use crate::record::Record;
use crate::trouble::Trouble;
use crate::watcher::{Next, Sleeper, Watcher};

/// What an attempt is made with.
#[derive(Debug, Clone)]
pub(crate) struct Means {
    pub(crate) place: Arc<Place>,
    pub(crate) watcher: Arc<Watcher>,
    pub(crate) poll_interval: Duration,
    pub(crate) gate_patience: Duration,
}

/// How long until the next look when one has failed.
const WHEN_TROUBLED: Duration = Duration::from_millis(100);

/// What to do when somebody else holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Busy {
    Leave,
    Queue,
}

/// One attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    means: Means,
    physical: Arc<str>,
    record: Record,
    busy: Busy,
    signals: Signals,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    knocking: Option<Knocking>,
    /// What the core has not been told yet.
    news: Option<News>,
    contact: Contact,
    waker: Option<Waker>,
}

/// What a look finds besides the outcome. The core wakes somebody of it, so it is told after the mutex is let go of.
#[derive(Debug)]
enum News {
    Queued,
    Trouble(Trouble),
}

/// What the core believes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contact {
    Good,
    /// Nobody knows whether the lock is held.
    Troubled,
}

#[derive(Debug)]
enum Phase {
    New,
    Waiting { ticket: Ticket, behind: Behind },
    Granted(Arc<Hold>),
    Refused,
    Failed(Trouble),
    Withdrawn,
}

/// Whose end a waiter waits for.
#[derive(Debug, Clone, Copy)]
enum Behind {
    Waiter(u64),
    Holder,
}

/// How an attempt ended.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    Granted(Arc<Hold>),
    Refused,
    Failed(Trouble),
}

/// Asking for the gate while somebody else is in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Knocking {
    since: Instant,
    pause: Duration,
    reported: Reported,
}

/// Whether the user has been told who is in the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reported {
    No,
    Yes,
}

impl Knocking {
    const FIRST_PAUSE: Duration = Duration::from_micros(50);
    const LONGEST_PAUSE: Duration = Duration::from_millis(20);
    /// From then on it is worth a word.
    const REMARKABLE: Duration = Duration::from_millis(50);

    pub(crate) fn since(since: Instant) -> Self {
        Self { since, pause: Self::FIRST_PAUSE, reported: Reported::No }
    }

    /// For how long until the next time.
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
    pub(crate) fn new(means: Means, physical: &str, record: Record, busy: Busy, signals: Signals) -> Self {
        let state =
            State { phase: Phase::New, knocking: None, news: None, contact: Contact::Good, waker: None };
        Self { means, physical: Arc::from(physical), record, busy, signals, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it ended, if it has.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.lock().phase.outcome()
    }

    /// Waits for the end.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        with_waker(context, |waker| {
            let mut state = self.lock();
            if let Some(outcome) = state.phase.outcome() {
                return Poll::Ready(outcome);
            }
            std::mem::swap(&mut state.waker, waker);
            Poll::Pending
        })
    }

    /// The look on the caller's thread. Asks for the gate for a moment, since usually the one in it is about to leave.
    pub(crate) fn first_look(&self, impatience: Duration) {
        let start = Instant::now();
        while let Next::Again(_) = self.look() {
            if start.elapsed() >= impatience {
                break;
            }
            std::thread::yield_now();
        }
        self.lock().knocking = None;
    }

    /// Leaves the queue, and answers the hold if there is one already. Nothing comes of the attempt any more.
    pub(crate) fn withdraw(&self) -> Option<Arc<Hold>> {
        let phase = std::mem::replace(&mut self.lock().phase, Phase::Withdrawn);
        match phase {
            Phase::Granted(hold) => Some(hold),
            _ => None,
        }
    }

    /// Makes the next step, in the gate.
    fn step(&self, gate: Gate, state: &mut State) -> Next {
        state.knocking = None;
        let (mut ticket, behind) = match std::mem::replace(&mut state.phase, Phase::New) {
            Phase::Waiting { ticket, behind } => (Some(ticket), behind),
            _ => (None, Behind::Holder),
        };
        match self.decide(&gate, &mut ticket) {
            Ok(phase) => {
                state.phase = phase;
                // Only now: whoever is woken by its removal wants to get into the gate.
                drop(gate);
                drop(ticket);
            }
            // The folder was removed after the gate was passed: pass the one of the next folder.
            Err(trouble) if trouble.is_missing() => return self.knock(state),
            Err(trouble) => {
                if let Some(ticket) = ticket {
                    state.phase = Phase::Waiting { ticket, behind };
                }
                return self.fail(state, trouble);
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

    /// What follows from the look around. Leaves a ticket that is of no use any more.
    fn decide(&self, gate: &Gate, ticket: &mut Option<Ticket>) -> Result<Phase, Trouble> {
        let queue = Queue::of(gate.folder(), &self.physical);
        let numbers = queue.numbers()?;
        // A ticket that somebody has removed orders nobody: draw another.
        if ticket.as_ref().is_some_and(|ticket| !numbers.contains(&ticket.number())) {
            *ticket = None;
        }
        let ahead = match &*ticket {
            Some(ticket) => &numbers[..numbers.partition_point(|number| *number < ticket.number())],
            None => &numbers[..],
        };
        let behind = match queue.last_alive(ahead)? {
            Some(number) => Behind::Waiter(number),
            None => match held::take(gate, &self.physical, &self.record)? {
                Some(taken) => {
                    let Means { watcher, poll_interval, .. } = &self.means;
                    let hold = Hold::new(taken, self.signals.clone(), *poll_interval, watcher);
                    return Ok(Phase::Granted(Arc::new(hold)));
                }
                None => Behind::Holder,
            },
        };
        if self.busy == Busy::Leave {
            return Ok(Phase::Refused);
        }
        let ticket = match ticket.take() {
            Some(ticket) => ticket,
            None => queue.join(gate, &numbers, &self.record)?,
        };
        Ok(Phase::Waiting { ticket, behind })
    }

    /// A lack that passes costs whoever waits nothing but time: it keeps its place. Anything else ends the attempt.
    fn fail(&self, state: &mut State, trouble: Trouble) -> Next {
        if self.busy == Busy::Queue && trouble.is_passing() {
            state.tell(News::Trouble(trouble));
            return Next::Again(WHEN_TROUBLED);
        }
        state.phase = Phase::Failed(trouble);
        Next::Over
    }

    /// The gate is not to be had now.
    fn knock(&self, state: &mut State) -> Next {
        let knocking = state.knocking.get_or_insert(Knocking::since(Instant::now()));
        let pause = knocking.pause();
        let lasts = knocking.lasts();
        match self.busy {
            Busy::Leave if lasts >= self.means.gate_patience => {
                state.phase = Phase::Failed(Gate::busy(&self.means.place));
                return Next::Over;
            }
            // If the wait ends now, nobody knows whether the lock was free: let it end with this error.
            Busy::Queue if lasts >= Knocking::REMARKABLE && knocking.reported == Reported::No => {
                knocking.reported = Reported::Yes;
                state.tell(News::Trouble(Gate::busy(&self.means.place)));
            }
            Busy::Leave | Busy::Queue => {}
        }
        Next::Again(pause)
    }

    fn wait_further(&self, state: &State) -> Next {
        let Phase::Waiting { behind, .. } = &state.phase else {
            return Next::Over;
        };
        let folder = self.means.place.folder();
        let path = match behind {
            Behind::Waiter(number) => Queue::of(&folder, &self.physical).path_of(*number),
            Behind::Holder => folder.path_of(&held::relative(&self.physical)),
        };
        Next::Watch { path, otherwise: self.means.poll_interval }
    }

    /// Whether the waiter right before this one still lives, so that nothing can have come of the wait.
    fn is_behind_a_living_waiter(&self, state: &State) -> bool {
        match &state.phase {
            Phase::Waiting { ticket, behind: Behind::Waiter(number) } => {
                // In a folder that was moved away nobody's turn matters any more.
                ticket.folder().is_current()
                    && Queue::of(ticket.folder(), &self.physical).is_alive(*number).unwrap_or(false)
            }
            _ => false,
        }
    }
}

impl State {
    fn tell(&mut self, news: News) {
        self.contact = match &news {
            News::Queued => Contact::Good,
            News::Trouble(_) => Contact::Troubled,
        };
        self.news = Some(news);
    }
}

impl Phase {
    fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::New | Self::Waiting { .. } => None,
            Self::Granted(hold) => Some(Outcome::Granted(Arc::clone(hold))),
            Self::Failed(trouble) => Some(Outcome::Failed(trouble.clone())),
            Self::Refused | Self::Withdrawn => Some(Outcome::Refused),
        }
    }
}

impl Sleeper for Attempt {
    fn look(&self) -> Next {
        let mut state = self.lock();
        if state.phase.outcome().is_some() {
            return Next::Over;
        }
        let next = if self.is_behind_a_living_waiter(&state) {
            if state.contact == Contact::Troubled {
                state.tell(News::Queued);
            }
            self.wait_further(&state)
        } else {
            match Gate::enter(&self.means.place) {
                Ok(Some(gate)) => self.step(gate, &mut state),
                Ok(None) => self.knock(&mut state),
                Err(trouble) => self.fail(&mut state, trouble),
            }
        };
        let news = state.news.take();
        let waker = state.phase.outcome().and_then(|_| state.waker.take());
        drop(state);
        match news {
            Some(News::Queued) => self.signals.queued(),
            Some(News::Trouble(trouble)) => {
                self.signals.unreachable(trouble.into_error(Operation::Acquire, None));
            }
            None => {}
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        next
    }
}
