//! One attempt to acquire a lock: takes it at once, or keeps a place in the queue until another client's write has granted it.

use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{
    AcquireRequest, Backoff, Downgraded, FencingToken, Grant, LockError, Mode, Moment, Operation,
    Participant, Term, Wait,
};

use crate::backend::{RegisterBackend, RegisterLease};
use crate::register::Register;
use crate::slot::{Edit, From, Slot};
use crate::state::{Entry, Found, State};

/// So many of those who wait look as often as they can: the next holders, and one more in case the first of them are dead.
const NEXT_IN_LINE: usize = 3;

/// A waiter far behind looks this much less often.
const LEAST_OFTEN: u32 = 8;

/// The longest pause while the store does not answer.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Attempt<'a, R: Register> {
    backend: &'a RegisterBackend<R>,
    request: &'a AcquireRequest,
    slot: Arc<Slot<R>>,
    lease: Duration,
    /// The time between two beats.
    interval: Duration,
}

impl<'a, R: Register> Attempt<'a, R> {
    pub(crate) fn new(
        backend: &'a RegisterBackend<R>,
        request: &'a AcquireRequest,
    ) -> Result<Self, LockError> {
        let lease = request.lease().unwrap_or(backend.options().lease);
        let interval = backend.context().renewal_interval(lease)?;
        let slot = backend.slot(request.physical(), request.mode().kind());
        Ok(Self { backend, request, slot, lease, interval })
    }

    pub(crate) async fn make(self) -> Result<Option<Grant<RegisterLease<R>>>, LockError> {
        let tries_once = self.request.wait() == Wait::Try;
        let (mut found, mut confirmed) = self
            .change(Operation::Acquire, |state, entry| {
                let found = state.enter(self.request.id(), entry, tries_once);
                let has = matches!(found, Found::Holds { .. } | Found::Waits { .. });
                if has { Edit::Write(found) } else { Edit::Keep(found) }
            })
            .await?;
        let silent = Backoff::new(self.backend.options().poll, LONGEST_PAUSE);
        let mut pauses = silent.clone();
        loop {
            let pause = match found {
                Found::Holds { token } => return Ok(Some(self.grant(token, confirmed))),
                Found::Waits { before, behind, .. } => {
                    self.name(behind);
                    self.request.queued();
                    self.pause(before)
                }
                Found::Nothing { behind } => {
                    self.name(behind);
                    return Ok(None);
                }
                Found::OtherPermits(is) => return Err(self.other_permits(is)),
            };
            self.wait(pause, confirmed).await;
            found = loop {
                match self.look(&mut confirmed).await {
                    Ok(found) => break found,
                    Err(error) if error.is_retryable() => self.request.unreachable(error),
                    Err(error) => return Err(error),
                }
                self.wait(pauses.next_pause(), confirmed).await;
            };
            pauses = silent.clone();
        }
    }

    /// Looks at the object, and changes it if it is time for a beat, or what others have left is to be taken. `confirmed` is a
    /// moment before the sending of the last beat that was confirmed: a later one that was carried out without an answer is no harm.
    async fn look(&self, confirmed: &mut Moment) -> Result<Found, LockError> {
        let id = self.request.id();
        if self.backend.now() < confirmed.plus(self.interval) {
            let (state, is_settled) = self.slot.look(Operation::Acquire).await?;
            let found = state.find(id);
            let is_far_behind = matches!(found, Found::Waits { before, .. } if before >= NEXT_IN_LINE);
            if !is_settled || is_far_behind {
                return Ok(found);
            }
        }
        let (found, sent) = self
            .change(Operation::Acquire, |state, entry| {
                state.beat(id, entry.beat());
                match state.find(id) {
                    found @ Found::Nothing { .. } => Edit::Keep(found),
                    found => Edit::Write(found),
                }
            })
            .await?;
        *confirmed = sent;
        Ok(found)
    }

    /// Changes the object. `edit` gets an entry of the attempt with a new beat.
    async fn change<T>(
        &self,
        operation: Operation,
        mut edit: impl FnMut(&mut State, Entry) -> Edit<T>,
    ) -> Result<(T, Moment), LockError> {
        let edit = |state: &mut State| {
            let edit = edit(state, Entry::of(self.request, self.lease, self.backend.next_beat()));
            if let Edit::Write(_) = edit {
                self.slot.enters(self.request.id());
            }
            edit
        };
        self.slot.change(operation, From::Store, edit).await
    }

    /// How long a waiter behind so many others waits until it looks again.
    fn pause(&self, before: usize) -> Duration {
        let behind = u32::try_from(before.saturating_sub(NEXT_IN_LINE - 1)).unwrap_or(LEAST_OFTEN);
        let pause = self.backend.options().poll * (1 + behind).min(LEAST_OFTEN);
        Backoff::new(pause, pause).next_pause()
    }

    /// Waits until the pause is over, it is time for the next beat, or the core wants to know.
    async fn wait(&self, pause: Duration, confirmed: Moment) {
        let (clock, now) = (self.backend.context().clock(), self.backend.now());
        let beat = confirmed.plus(self.interval);
        let until = if beat > now { beat.min(now.plus(pause)) } else { now.plus(pause) };
        let _ = within(clock, until, self.request.asked()).await;
    }

    fn name(&self, holder: Option<Participant>) {
        if let Some(holder) = holder {
            self.request.held_by(holder);
        }
    }

    fn other_permits(&self, is: u32) -> LockError {
        let asked = match self.request.mode() {
            Mode::Permits { of, .. } => of.get(),
            _ => 0,
        };
        LockError::other_permits(self.request.name(), asked, is)
    }

    /// Makes an exclusive hold a shared one, which is that of this attempt.
    pub(crate) async fn downgrade(
        self,
        held: &RegisterLease<R>,
    ) -> Result<Downgraded<RegisterLease<R>>, LockError> {
        let id = self.request.id();
        let (shared, sent) = self
            .change(Operation::Downgrade, |state, entry| {
                match state.downgrade(held.id(), id, entry) {
                    Found::Holds { token } => Edit::Write(Ok(token)),
                    // An earlier write may still come, and no client would renew what it makes.
                    _ => Edit::Certain(Err(state.loss(held.id()))),
                }
            })
            .await?;
        Ok(match shared {
            Ok(token) => {
                self.slot.has_left(held.id());
                Downgraded::Shared(self.grant(token, sent))
            }
            Err(reason) => {
                self.slot.has_left(id);
                Downgraded::WasLost(reason)
            }
        })
    }

    fn grant(self, token: FencingToken, anchor: Moment) -> Grant<RegisterLease<R>> {
        let group = self.slot.group();
        let term = Term::Leased { anchor, length: self.lease };
        let lease = RegisterLease::new(self.slot, self.request.id());
        let (token, sections) = (Some(token), self.request.sections());
        Grant { token, sections, ..Grant::new(lease, group, term) }
    }
}
