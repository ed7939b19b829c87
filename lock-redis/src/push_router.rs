//! Delivers the messages on a client's channel: grants to waiters, and breaks to holders.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lock_core::spi::Mutex;
use lock_core::{AcquireRequest, AttemptId, FencingToken, LossReason, Moment};
use tokio::sync::Notify;

use crate::record::Message;

/// Every waiting attempt and every hold of a client, by id.
#[derive(Default)]
pub(crate) struct PushRouter {
    addressees: Mutex<HashMap<AttemptId, Addressee>>,
    last_beat: AtomicU64,
}

enum Addressee {
    /// With the handle of its attempt, because the hold may be broken before the waiter has read the grant.
    Waiter(Arc<Waiter>, AcquireRequest),
    Holder(AcquireRequest),
}

impl PushRouter {
    /// A number that is unique among this client's requests: a push that answers an old request must not count as an answer to a
    /// new one.
    pub(crate) fn next_beat(&self) -> u64 {
        self.last_beat.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Keeps grants that the server pushes to the attempt from now on.
    pub(crate) fn expect_grant(self: &Arc<Self>, id: AttemptId, attempt: &AcquireRequest) -> Expected {
        let waiter = Arc::new(Waiter::default());
        self.addressees.lock().insert(id, Addressee::Waiter(Arc::clone(&waiter), attempt.clone()));
        Expected { address: Address { router: Arc::clone(self), id }, waiter }
    }

    /// Notifies the hold from now on when it is broken.
    pub(crate) fn hold(self: &Arc<Self>, id: AttemptId, attempt: &AcquireRequest) -> Address {
        self.addressees.lock().insert(id, Addressee::Holder(attempt.clone()));
        Address { router: Arc::clone(self), id }
    }

    /// Delivers a message. Drops one with an unknown address: either the attempt was given up and its cancel is on the way, or
    /// it is about to ask again and then gets the answer.
    pub(crate) fn deliver(&self, message: &Message) {
        match message {
            Message::Granted { id, beat, token } => {
                let waiter = match self.addressees.lock().get(&AttemptId::new(*id)) {
                    Some(Addressee::Waiter(waiter, _)) => Arc::clone(waiter),
                    _ => return,
                };
                waiter.grant(*beat, *token);
            }
            Message::Broken { id } => {
                let attempt = match self.addressees.lock().get(&AttemptId::new(*id)) {
                    Some(Addressee::Holder(attempt) | Addressee::Waiter(_, attempt)) => attempt.clone(),
                    None => return,
                };
                attempt.lost(LossReason::Broken);
            }
        }
    }
}

/// An address in the client's router, until it is dropped.
pub(crate) struct Address {
    router: Arc<PushRouter>,
    id: AttemptId,
}

impl Address {
    pub(crate) fn attempt(&self) -> AttemptId {
        self.id
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        let gone = self.router.addressees.lock().remove(&self.id);
        // Dropped after the mutex is unlocked: its drop may call the router again.
        drop(gone);
    }
}

/// The address of a waiting attempt.
pub(crate) struct Expected {
    address: Address,
    waiter: Arc<Waiter>,
}

impl Expected {
    /// Records when a request is sent, before it is.
    pub(crate) fn sent(&self, beat: u64, at: Moment) {
        self.waiter.state.lock().note(beat, at);
    }

    /// Waits for a grant. Returns when the client sent the request from which the grant lasts, if it still knows.
    pub(crate) async fn granted(&self) -> (Option<Moment>, FencingToken) {
        loop {
            if let Some(granted) = self.waiter.state.lock().take_grant() {
                return granted;
            }
            self.waiter.woken.notified().await;
        }
    }

    /// Turns the attempt's address into that of a hold.
    pub(crate) fn into_hold(self, attempt: &AcquireRequest) -> Address {
        let previous =
            self.address.router.addressees.lock().insert(self.address.id, Addressee::Holder(attempt.clone()));
        drop(previous);
        self.address
    }
}

#[derive(Default)]
struct Waiter {
    state: Mutex<State>,
    woken: Notify,
}

impl Waiter {
    fn grant(&self, beat: u64, token: FencingToken) {
        self.state.lock().grant = Some((beat, token));
        self.woken.notify_one();
    }
}

/// The latest requests: a grant lasts from the last one that arrived, which may be the one before the last that was sent.
#[derive(Default)]
struct State {
    sent: [Option<(u64, Moment)>; 4],
    next: usize,
    grant: Option<(u64, FencingToken)>,
}

impl State {
    fn note(&mut self, beat: u64, at: Moment) {
        self.sent[self.next % self.sent.len()] = Some((beat, at));
        self.next = self.next.wrapping_add(1);
    }

    fn take_grant(&mut self) -> Option<(Option<Moment>, FencingToken)> {
        let (beat, token) = self.grant.take()?;
        let sent = self.sent.iter().flatten().find(|(sent, _)| *sent == beat);
        Some((sent.map(|(_, at)| *at), token))
    }
}

#[cfg(test)]
mod tests {
    use lock_core::{AcquireRequest, HolderInfo, LockName, Wait};

    use super::*;
    use crate::backend::NAMES;

    fn request() -> AcquireRequest {
        let name = LockName::new("a").unwrap();
        let physical = NAMES.apply(&name);
        let holder = Arc::new(HolderInfo::of_this_process());
        AcquireRequest::new(AttemptId::new(1), name, physical, Wait::Forever, holder)
    }

    #[tokio::test]
    async fn a_grant_lasts_from_the_request_that_it_names() {
        let (router, request) = (Arc::new(PushRouter::default()), request());
        let expected = router.expect_grant(AttemptId::new(1), &request);
        for beat in 1..=6 {
            expected.sent(beat, Moment::from_nanoseconds(beat * 100));
        }
        for (beat, anchor) in [(6, Some(600)), (5, Some(500)), (2, None), (7, None)] {
            router.deliver(&Message::Granted { id: 1, beat, token: FencingToken::new(9) });
            let (found, token) = expected.granted().await;
            assert_eq!((found, token), (anchor.map(Moment::from_nanoseconds), FencingToken::new(9)));
        }
    }

    #[test]
    fn what_has_no_receiver_is_dropped() {
        let (router, request) = (Arc::new(PushRouter::default()), request());
        drop(router.expect_grant(AttemptId::new(1), &request));
        router.deliver(&Message::Granted { id: 1, beat: 1, token: FencingToken::new(9) });
        router.deliver(&Message::Broken { id: 1 });
        assert!(router.addressees.lock().is_empty());
    }

    #[test]
    fn no_two_requests_have_one_number() {
        let router = PushRouter::default();
        assert_ne!(router.next_beat(), router.next_beat());
    }
}
