//! A waker that runs a function when it is dropped.

use std::sync::Arc;
use std::task::{Wake, Waker};

struct End<F: Fn() + Send + Sync>(F);

impl<F: Fn() + Send + Sync> Wake for End<F> {
    fn wake(self: Arc<Self>) {}
}

impl<F: Fn() + Send + Sync> Drop for End<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

pub(crate) fn waker_with_an_end(end: impl Fn() + Send + Sync + 'static) -> Waker {
    Arc::new(End(end)).into()
}
