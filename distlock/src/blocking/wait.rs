//! Blocking a thread until a future is done, where no runtime needs the thread.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use lock_core::{ErrorKind, LockError, Operation, Owner};
use tokio::runtime::{self, Handle};
use tokio::task::coop;

/// Blocks the calling thread until `future` is done.
pub(super) fn for_result<T>(
    operation: Operation,
    future: impl Future<Output = Result<T, LockError>>,
) -> Result<T, LockError> {
    may_block(operation)?;
    block_on(future)
}

/// Refuses to block a thread that runs asynchronous tasks.
pub(super) fn may_block(operation: Operation) -> Result<(), LockError> {
    match Handle::try_current() {
        Ok(_) if runs_tasks() => Err(LockError::new(ErrorKind::WouldBlock, operation).remedy(
            "call it in tokio::task::spawn_blocking, or use distlock::LockClient and its async methods",
        )),
        Err(error) if error.is_thread_local_destroyed() => Err(LockError::new(ErrorKind::NoOwner, operation)
            .because("the thread is ending, and its thread-local variables are gone")),
        _ => Ok(()),
    }
}

/// Returns whether the calling code runs in a task or in `block_on`, and not in `spawn_blocking` or `block_in_place`.
fn runs_tasks() -> bool {
    runtime::worker_index().is_some() || has_budget()
}

/// So many units are more than tokio gives to one poll.
const MORE_THAN_A_BUDGET: usize = 256;

/// Returns whether tokio limits what the calling code may do before it yields. Whatever tokio polls has such a budget: in
/// `block_on` and a `LocalSet`, too, whose thread need not be a worker. Blocking code has none.
fn has_budget() -> bool {
    let mut context = Context::from_waker(Waker::noop());
    let mut units = Vec::with_capacity(MORE_THAN_A_BUDGET);
    while let Poll::Ready(unit) = coop::poll_proceed(&mut context) {
        units.push(unit);
        if units.len() == MORE_THAN_A_BUDGET {
            return false; // outside a budget there is nothing to give back
        }
    }
    // Each unit restores the budget as it was before it, so the first one has to be the last.
    while units.pop().is_some() {}
    true
}

/// Blocks the calling thread until `future` is done. The thread is the owner for which `future` acts, unless there is a
/// scope or a task.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = Owner::as_thread(|| future.as_mut().poll(&mut context)) {
            return output;
        }
        bell.wait();
    }
}

/// Wakes one thread. `std::thread::park` would take wake-ups that are meant for the caller's own code.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    ringing: Condvar,
}

impl Bell {
    fn wait(&self) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rung = self.ringing.wait_while(rung, |rung| !*rung).unwrap_or_else(PoisonError::into_inner);
        *rung = false;
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ringing.notify_one();
    }
}
