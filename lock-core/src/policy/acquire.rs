//! Acquires a lock: enters the local mutex, and waits there for the outcome.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::policy::cleanup::no_answer;
use crate::policy::entry::Entry;
use crate::policy::hold::{HoldCore, Observer};
use crate::policy::local::{Entered, Patience, Prospect, Settled, Ticket};
use crate::policy::metrics::{Outcome, Waiting};
use crate::runtime::clock::{Moment, Sleep};
use crate::runtime::engine::AbortOnDrop;
use crate::spi::{HoldOptions, Wait};
use crate::types::error::{LockError, Operation};
use crate::types::owner::Owner;
use crate::types::status::HolderInfo;

/// What a caller asks of a lock, each time that it acquires it.
#[derive(Clone)]
pub(crate) struct Acquisition {
    pub(crate) options: Arc<HoldOptions>,
    /// Receives the events of the holds that it gets, beside the observer of the client.
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

impl Acquisition {
    pub(crate) fn new(options: Arc<HoldOptions>) -> Self {
        Self { options, observer: None }
    }
}

impl Entry {
    /// Enters for `owner`: locally first, then remotely. Returns `None` when the lock could not be had in time.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        acquisition: &Acquisition,
        owner: Owner,
        wait: Wait,
    ) -> Result<Option<Arc<HoldCore>>, LockError> {
        self.refuse_upgrade(owner)?;
        let patience = Patience::from(wait);
        let attempt = |patience, options: &Arc<HoldOptions>| self.new_attempt(patience, options);
        let (entered, start) = self.local.enter(owner, patience, Arc::clone(&acquisition.options), attempt);
        let settled = match entered {
            Entered::Settled(settled) => {
                // A caller that finds a loss before it was reported lets the next in the queue have its turn.
                self.start_there(start);
                // A reentry is no wait.
                if !matches!(settled, Settled::Granted(_)) {
                    self.client
                        .metrics()
                        .waited(self.counted_as(), Outcome::from(&settled), || Duration::ZERO);
                }
                settled
            }
            Entered::Waiting(ticket) => {
                // The attempt that it starts was made just now.
                let since =
                    start.as_ref().map_or_else(|| self.clock().now(), |request| request.handle.since());
                let wait = QueuedWait::new(self, ticket, patience, &acquisition.options, since);
                self.start_here(start);
                wait.await
            }
        };
        match settled {
            Settled::Granted(hold) => {
                if let Some(observer) = &acquisition.observer {
                    hold.observe_with(observer);
                }
                hold.report_acquired();
                Ok(Some(hold))
            }
            Settled::Refused => Ok(None),
            Settled::Failed(error) => Err(self.about(error).during(Operation::Acquire)),
            Settled::Lost(reason) => Err(self.lost(Operation::Acquire, reason)),
        }
    }
}

impl From<&Settled<Arc<HoldCore>, LockError>> for Outcome {
    fn from(settled: &Settled<Arc<HoldCore>, LockError>) -> Self {
        match settled {
            Settled::Granted(_) => Self::Acquired,
            Settled::Refused => Self::Busy,
            Settled::Failed(_) => Self::Failed,
            Settled::Lost(_) => Self::Lost,
        }
    }
}

impl Entry {
    /// Writes a warning about the lock after `pause`, unless the returned value is dropped before.
    pub(crate) fn warn_after(&self, pause: Duration, warning: &'static str) -> AbortOnDrop<()> {
        let end = self.clock().sleep_until(self.clock().now().plus(pause));
        let name = self.name().clone();
        AbortOnDrop(self.client.engine().spawn(async move {
            end.await;
            tracing::warn!(target: "distlock", lock = %name, "{warning}");
        }))
    }
}

/// A place in the local queue.
///
/// Dropping it leaves the queue; a grant that was on its way to it goes to the next waiter, or back to the server.
struct QueuedWait {
    entry: Arc<Entry>,
    /// `None` when the wait has ended.
    ticket: Option<Ticket>,
    deadline: Option<Sleep>,
    /// Runs when the time is up and the server has not answered yet.
    first_word: Option<Sleep>,
    patience: Patience,
    holder: Arc<HolderInfo>,
    since: Moment,
    /// Whether the wait was still undecided at the first poll.
    has_waited: bool,
    _counted: Waiting,
}

/// The time that the server gets for its first answer, however short the wait is, because an answer that is on its way
/// is not an outage. A caller that tries once also waits for that answer. Once the server has answered, a short wait
/// ends on time.
const FIRST_WORD: Duration = Duration::from_secs(1);

impl QueuedWait {
    fn new(
        entry: &Arc<Entry>,
        ticket: Ticket,
        patience: Patience,
        options: &HoldOptions,
        since: Moment,
    ) -> Self {
        Self {
            entry: Arc::clone(entry),
            ticket: Some(ticket),
            deadline: None,
            first_word: None,
            patience,
            holder: Arc::clone(&options.holder),
            since,
            has_waited: false,
            _counted: entry.client.metrics().waits(entry.counted_as()),
        }
    }

    /// Completes when the time is up. A caller that tries once waits for the answer, whenever it comes.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Patience::Until(until) = self.patience else {
            return Poll::Pending;
        };
        let clock = self.entry.clock();
        let sleep = self.deadline.get_or_insert_with(|| clock.sleep_until(Moment::from_nanoseconds(until)));
        Pin::new(sleep).poll(context)
    }

    /// Completes when the server has answered, or has had enough time.
    fn poll_first_word(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(ticket) = self.ticket else { return Poll::Ready(()) };
        let clock = self.entry.clock();
        let asked_at = match self.entry.local.prospect(ticket) {
            Prospect::None => return Poll::Ready(()),
            Prospect::Attempt(attempt) if attempt.handle.poll_contact(context).is_ready() => {
                return Poll::Ready(());
            }
            // Until a moment ago, the lock may have been held through this same client.
            Prospect::Attempt(attempt) => attempt.handle.since().max(self.since),
            // Until a moment ago, the lock was held through this same client.
            Prospect::Answer => clock.now(),
        };
        let until = asked_at.plus(FIRST_WORD);
        let sleep = self.first_word.get_or_insert_with(|| clock.sleep_until(until));
        Pin::new(sleep).poll(context)
    }
}

impl Future for QueuedWait {
    type Output = Settled<Arc<HoldCore>, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(ticket) = self.ticket else {
            return Poll::Pending;
        };
        let settled = match self.entry.local.poll(ticket, context) {
            Poll::Ready(settled) => settled,
            Poll::Pending => {
                if !std::mem::replace(&mut self.has_waited, true) {
                    self.entry.logged().waiting(&self.holder);
                }
                if self.poll_deadline(context).is_pending() || self.poll_first_word(context).is_pending() {
                    return Poll::Pending;
                }
                let counted = self.entry.client.cleanup.expect();
                let (settled, undo) = self.entry.local.give_up(ticket, no_answer);
                self.entry.undo(undo, counted);
                settled
            }
        };
        self.ticket = None;
        self.log(&settled);
        Poll::Ready(settled)
    }
}

impl QueuedWait {
    fn waited(&self) -> Duration {
        self.entry.clock().now().since(self.since)
    }

    fn log(&self, settled: &Settled<Arc<HoldCore>, LockError>) {
        let (lock, waited) = (self.entry.logged(), || self.waited());
        self.entry.client.metrics().waited(self.entry.counted_as(), Outcome::from(settled), waited);
        match settled {
            Settled::Granted(hold) => lock.granted(&self.holder, hold.grant().token, waited),
            Settled::Refused => lock.not_granted(waited, &"another holder has it, or comes before"),
            Settled::Failed(error) => lock.not_granted(waited, error),
            Settled::Lost(reason) => lock.not_granted(waited, reason),
        }
    }
}

impl Drop for QueuedWait {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let counted = self.entry.client.cleanup.expect();
            let undo = self.entry.local.leave(ticket);
            self.entry.undo(undo, counted);
            self.entry.client.metrics().waited(self.entry.counted_as(), Outcome::Cancelled, || self.waited());
        }
    }
}
