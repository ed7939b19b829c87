//! The hold of several locks: one object for their owner, which is lost when one of its parts is.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};

use crate::api::joint::Joints;
use crate::policy::hold::state::Event;
use crate::policy::hold::{About, EndedHold, EventSink, Hold, HoldCore, HoldGrant, Home, UntilEnded};
use crate::runtime::{Few, Moment, wake_contained};
use crate::types::LossReason;

/// Joins the holds of `parts`; the loss of any of them is the loss of all as long as the watchers exist.
pub(super) fn join<'a>(
    joints: &Arc<Joints>,
    parts: impl Iterator<Item = &'a Hold>,
) -> (Hold, Vec<UntilEnded>) {
    let home: Arc<Joints> = Arc::clone(joints);
    let parts = parts.cloned().collect();
    let hold = Hold::new(home, HoldGrant::default(), parts, Moment::FOREVER);
    let loss = Arc::new(LossOfAPart(Arc::downgrade(&hold.0)));
    let waker = Waker::from(Arc::clone(&loss));
    let watchers = hold.0.parts.iter().map(|part| {
        let mut ended = part.until_ended();
        let _ = Pin::new(&mut ended).poll(&mut Context::from_waker(&waker));
        ended
    });
    let watchers = watchers.collect();
    // Of one that was lost before.
    loss.wake();
    (hold, watchers)
}

/// Watches the parts of this hold: it is the waker that they wake when they end.
///
/// So the code that ends a part passes its loss on, on the same thread and before the next await of a holder. It needs no task,
/// and works without a runtime.
struct LossOfAPart(Weak<HoldCore>);

impl Wake for LossOfAPart {
    fn wake(self: Arc<Self>) {
        let Some(joint) = self.0.upgrade().map(Hold) else { return };
        if let Some(reason) = joint.0.parts.iter().find_map(Hold::loss) {
            let mut woken = Few::default();
            joint.lose(reason, &mut woken);
            woken.drain(wake_contained);
        }
    }
}

/// No server knows the hold, and its parts clean up after themselves.
impl Hold {
    /// All parts are released, or turn out to have been lost.
    pub(super) fn released(&self, loss: Option<LossReason>) {
        let mut woken = Few::default();
        let ended = self.finish(loss, None, &mut woken);
        woken.drain(wake_contained);
        ended.iter().for_each(EndedHold::report);
    }
}

impl Home for Joints {
    fn about(&self) -> About<'_> {
        About { name: &self.name, clock: &self.clock, server: "", metrics: None }
    }

    fn publish(&self, event: Event, hold: &Hold) {
        self.publisher.publish(event, hold);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::api::builder::ClientBuilder;
    use crate::api::guard::LockGuard;
    use crate::api::tests::fake::Fake;
    use crate::types::HoldEnd;

    #[tokio::test]
    async fn a_part_that_was_lost_before_counts_and_one_that_stays_held_forgets_the_joint_hold() {
        let server = Fake::with_losses();
        let client = server.client(ClientBuilder::new());
        let (lost, held) = (client.mutex("a").unwrap(), client.mutex("b").unwrap());
        let names = [lost.name().clone(), held.name().clone()];
        let locks = vec![Arc::clone(&lost), Arc::clone(&held)];
        let joints = Arc::new(Joints::of(locks, &names, &Arc::default()).unwrap());
        let (held, lost) = (held.acquire().await.unwrap(), lost.acquire().await.unwrap());
        server.lose(LossReason::Deleted);
        let (joint, watchers) = join(&joints, [&lost, &held].into_iter().map(LockGuard::hold));
        assert_eq!(joint.end(), Some(HoldEnd::Lost(LossReason::Deleted)));
        assert_eq!(Arc::weak_count(&joint.0), 1);
        drop(watchers);
        assert_eq!(Arc::weak_count(&joint.0), 0);
        assert!(held.hold().is_valid());
    }
}
