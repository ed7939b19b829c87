//! Makes a joint hold lost when one of its parts is.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use crate::api::hold::Hold;
use crate::policy::hold::HoldCore;
use crate::policy::hold::state::Woken;
use crate::runtime::sync::Mutex;
use crate::types::loss::LossReason;

/// The watch over one part, until it is dropped.
///
/// It is its own waker: the code that ends the part passes the loss on, on the same thread and before the next await of a
/// holder. So it needs no task, and works without a runtime.
pub(super) struct PartLossWatch(Arc<Watch>);

struct Watch {
    /// `None` when the part has ended, or the watch has.
    loss: Mutex<Option<PartLoss>>,
    joint: Weak<HoldCore>,
}

type PartLoss = Pin<Box<dyn Future<Output = Option<LossReason>> + Send>>;

impl PartLossWatch {
    pub(super) fn begin(part: &Hold, joint: &Hold) -> Self {
        let loss: PartLoss = Box::pin(part.lost());
        let watch = Arc::new(Watch { loss: Mutex::new(Some(loss)), joint: Arc::downgrade(&joint.0) });
        watch.look();
        Self(watch)
    }
}

impl Watch {
    fn look(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        let mut watched = self.loss.lock();
        let Some(loss) = &mut *watched else { return };
        let Poll::Ready(end) = loss.as_mut().poll(&mut Context::from_waker(&waker)) else { return };
        let ended = watched.take();
        // The loss wakes tasks, so it is reported after the mutex is unlocked.
        drop(watched);
        drop(ended);
        if let (Some(reason), Some(joint)) = (end, self.joint.upgrade()) {
            let mut woken = Woken::default();
            joint.lose(reason, &mut woken);
            woken.into_iter().for_each(Waker::wake);
        }
    }
}

impl Wake for Watch {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

impl Drop for PartLossWatch {
    /// Ends the circle from the part to the waker, to the watch, to the part.
    fn drop(&mut self) {
        let loss = self.0.loss.lock().take();
        drop(loss);
    }
}
