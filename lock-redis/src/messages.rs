//! The messages on a client's channel: grants to waiters, and breaks to holders. They only save time: the next heartbeat or renewal
//! brings the same information.

use std::collections::HashMap;
use std::sync::Arc;

use lock_core::spi::Mutex;
use lock_core::{AcquireRequest, AttemptId, FencingToken, LossReason, Moment};
use tokio::sync::mpsc;

/// When the waiter sent the request from which its lease counts, and the token.
pub(crate) type Granted = (Moment, FencingToken);

/// Delivers to every waiting attempt and every hold of a client, by id.
#[derive(Default)]
pub(crate) struct Router(Mutex<HashMap<AttemptId, Addressee>>);

#[derive(Clone)]
struct Addressee {
    /// A hold may be broken before the waiter has read the grant.
    attempt: AcquireRequest,
    grants: mpsc::UnboundedSender<Granted>,
}

#[derive(Debug, PartialEq)]
enum Message {
    Granted(Granted),
    Broken,
}

impl Router {
    /// From now on notifies the attempt when its hold is broken, and keeps grants that the server pushes to it.
    pub(crate) fn enter(
        self: &Arc<Self>,
        attempt: &AcquireRequest,
    ) -> (Address, mpsc::UnboundedReceiver<Granted>) {
        let (grants, granted) = mpsc::unbounded_channel();
        let id = attempt.id();
        self.0.lock().insert(id, Addressee { attempt: attempt.clone(), grants });
        (Address { router: Arc::clone(self), id }, granted)
    }

    /// Delivers the messages that came together, one in each line. Drops one with an unknown address: either the attempt was given
    /// up and its cancel is on the way, or it is about to ask again and then gets the answer.
    pub(crate) fn deliver(&self, text: &str) {
        for (id, message) in text.lines().filter_map(read) {
            let addressee = self.0.lock().get(&id).cloned();
            let Some(Addressee { attempt, grants }) = addressee else { continue };
            match message {
                // An attempt that listens no longer has its lock, or is being cancelled.
                Message::Granted(granted) => drop(grants.send(granted)),
                Message::Broken => attempt.lost(LossReason::Broken),
            }
        }
    }
}

/// Reads a message, and to which attempt it is.
fn read(text: &str) -> Option<(AttemptId, Message)> {
    let mut words = text.split(' ');
    let id = words.next()?.split([':', '+']).next()?;
    let id = AttemptId::new(u128::from_str_radix(id, 16).ok()?);
    let message = match words.next()? {
        "granted" => {
            let beat = words.next()?.parse().ok()?;
            let token = words.next()?.parse().ok()?;
            Message::Granted((Moment::from_nanoseconds(beat), FencingToken::new(token)))
        }
        "broken" => Message::Broken,
        _ => return None,
    };
    Some((id, message))
}

/// An address in the client's router, until it is dropped.
pub(crate) struct Address {
    router: Arc<Router>,
    id: AttemptId,
}

impl Drop for Address {
    fn drop(&mut self) {
        let gone = self.router.0.lock().remove(&self.id);
        // Dropped after the mutex is unlocked: its drop may call the router again.
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use lock_core::{HolderInfo, LockName, Wait};

    use super::*;
    use crate::backend::NAMES;

    fn request() -> AcquireRequest {
        let name = LockName::new("a").unwrap();
        let physical = NAMES.apply(&name);
        let holder = Arc::new(HolderInfo::of_this_process());
        AcquireRequest::new(AttemptId::new(255), name, physical, Wait::Forever, holder)
    }

    #[test]
    fn reads_messages_and_ignores_what_is_none() {
        let granted = |id| {
            let granted = (Moment::from_nanoseconds(7), FencingToken::new(9));
            Some((AttemptId::new(id), Message::Granted(granted)))
        };
        assert_eq!(read("000000000000000000000000000000ff granted 7 9"), granted(255));
        assert_eq!(read("fe:1/2 granted 7 9"), granted(254));
        for text in ["ff broken", "ff:r broken", "ff+99 broken"] {
            assert_eq!(read(text), Some((AttemptId::new(255), Message::Broken)));
        }
        for text in ["", "ff", "ff granted", "ff granted 7", "ff granted x 9", "xyz broken", "ff hello"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_grant_lasts_from_the_request_that_it_names() {
        let (router, request) = (Arc::<Router>::default(), request());
        let (_address, mut granted) = router.enter(&request);
        router.deliver("fe granted 500 8\nhello\nff:r granted 600 9");
        assert_eq!(granted.try_recv().unwrap(), (Moment::from_nanoseconds(600), FencingToken::new(9)));
        assert!(granted.try_recv().is_err(), "that of another attempt");
    }

    #[test]
    fn what_has_no_receiver_is_dropped() {
        let (router, request) = (Arc::<Router>::default(), request());
        drop(router.enter(&request));
        router.deliver("ff granted 1 9\nff broken");
        assert!(router.0.lock().is_empty());
        let (_address, granted) = router.enter(&request);
        drop(granted);
        router.deliver("ff granted 1 9");
    }
}
