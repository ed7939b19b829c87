//! Wakers that are stored under a mutex, and other code that is not ours.

use std::panic::{AssertUnwindSafe, catch_unwind};
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
///     lock_core::spi::with_waker(context, |waker| {
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

/// Calls foreign code: if it panics, what comes after it is done all the same.
pub(crate) fn catch_panic<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

/// Wakes a task. A waker is foreign code.
pub(crate) fn wake_contained(waker: Waker) {
    catch_panic(move || waker.wake());
}
