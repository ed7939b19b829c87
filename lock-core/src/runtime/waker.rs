//! Wakers that stand under a mutex.

use std::task::{Context, Poll, Waker};

/// Looks under a mutex, and leaves a waker there when there is nothing to see yet.
///
/// To clone, wake or drop a waker runs the code of whoever made it, and that code may come back to the same mutex: a waker
/// may own the future that registered it, and drop it. So the waker is cloned before `look` locks the mutex. `look` swaps
/// it with the one in its place, and whichever is left is dropped after the mutex has been let go of.
///
/// ```
/// use std::sync::{Mutex, PoisonError};
/// use std::task::{Context, Poll, Waker};
///
/// struct Place {
///     answer: Option<u32>,
///     waker: Option<Waker>,
/// }
///
/// fn poll(place: &Mutex<Place>, context: &mut Context<'_>) -> Poll<u32> {
///     lock_core::with_waker(context, |waker| {
///         let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
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

/// A waker whose end runs something.
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
