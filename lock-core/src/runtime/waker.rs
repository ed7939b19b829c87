//! Wakers that are stored under a mutex.

use std::task::{Context, Poll, Waker};

/// Calls `look`, which checks a condition under a mutex and leaves a waker there if the condition is not met yet.
///
/// Cloning, waking or dropping a waker runs foreign code, and that code may lock the same mutex: a waker may own the
/// future that registered it, and drop it. So the waker is cloned before `look` locks the mutex. `look` swaps it with
/// the waker that is stored there, and the one that is left over is dropped after the mutex has been unlocked.
///
/// ```
/// use std::task::{Context, Poll, Waker};
///
/// use lock_core::spi::Mutex;
///
/// struct Place {
///     answer: Option<u32>,
///     waker: Option<Waker>,
/// }
///
/// fn poll(place: &Mutex<Place>, context: &mut Context<'_>) -> Poll<u32> {
///     lock_core::with_waker(context, |waker| {
///         let mut place = place.lock();
///         match place.answer {
///             Some(answer) => Poll::Ready(answer),
///             None => {
///                 std::mem::swap(&mut place.waker, waker);
///                 Poll::Pending
///             }
///         }
///     })
/// }
/// ```
pub fn with_waker<T>(context: &Context<'_>, look: impl FnOnce(&mut Option<Waker>) -> Poll<T>) -> Poll<T> {
    let mut waker = Some(context.waker().clone());
    let found = look(&mut waker);
    drop(waker);
    found
}

/// Wakers that are to be woken when a mutex has been unlocked. One of them, as many as there usually are, needs no memory.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    first: Option<Waker>,
    others: Vec<Waker>,
}

impl Wakers {
    pub(crate) fn wake(self) {
        if let Some(first) = self.first {
            first.wake();
            self.others.into_iter().for_each(Waker::wake);
        }
    }
}

impl Extend<Waker> for Wakers {
    fn extend<T: IntoIterator<Item = Waker>>(&mut self, wakers: T) {
        let mut wakers = wakers.into_iter();
        if self.first.is_none() {
            self.first = wakers.next();
        }
        self.others.extend(wakers);
    }
}

/// A waker that runs a function when it is dropped.
#[cfg(test)]
pub(crate) fn waker_with_an_end(end: impl FnOnce() + Send + Sync + 'static) -> Waker {
    struct End<F: FnOnce() + Send + Sync>(Option<F>);

    impl<F: FnOnce() + Send + Sync> std::task::Wake for End<F> {
        fn wake(self: std::sync::Arc<Self>) {}
    }

    impl<F: FnOnce() + Send + Sync> Drop for End<F> {
        fn drop(&mut self) {
            if let Some(end) = self.0.take() {
                end();
            }
        }
    }

    std::sync::Arc::new(End(Some(end))).into()
}
