//! Runs a short action in the gate: at once if the gate is free, otherwise on the watcher's thread.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::spi::with_waker;

use crate::attempt::{Knocking, Resources};
use crate::failure::Failure;
use crate::folder::LockFolder;
use crate::gate::Gate;
use crate::watcher::{Next, WatchedTask};

type Action<T> = Box<dyn FnOnce(&Gate) -> Result<T, Failure> + Send>;

struct GatedAction<T> {
    lock_folder: Arc<LockFolder>,
    patience: Duration,
    state: Mutex<Run<T>>,
}

struct Run<T> {
    action: Option<Action<T>>,
    knocking: Knocking,
    result: Option<Result<T, Failure>>,
    waker: Option<Waker>,
}

/// Runs `action` in the gate.
///
/// # Cancel safety
/// A future that is dropped after its first poll may or may not have run the action, and no longer runs it.
pub(crate) async fn run<T: Send + 'static>(
    resources: &Resources,
    action: impl FnOnce(&Gate) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let state =
        Run { action: Some(Box::new(action)), knocking: Knocking::begin(), result: None, waker: None };
    let gated = Arc::new(GatedAction {
        lock_folder: Arc::clone(&resources.lock_folder),
        patience: resources.gate_patience,
        state: Mutex::new(state),
    });
    let mut registration = None;
    if let Next::Again(pause) = gated.check() {
        registration = Some(resources.watcher.register(Arc::clone(&gated) as Arc<dyn WatchedTask>, pause));
    }
    let result = poll_fn(|context| {
        with_waker(context, |waker| {
            let mut state = gated.state.lock();
            if let Some(result) = state.result.take() {
                return Poll::Ready(result);
            }
            std::mem::swap(&mut state.waker, waker);
            Poll::Pending
        })
    })
    .await;
    drop(registration);
    result
}

impl<T: Send> WatchedTask for GatedAction<T> {
    fn check(&self) -> Next {
        let mut state = self.state.lock();
        let Some(action) = state.action.take() else { return Next::Over };
        let result = match Gate::enter(&self.lock_folder) {
            Ok(Some(gate)) => gate.check_layout().and_then(|()| action(&gate)),
            Ok(None) if state.knocking.lasts() < self.patience => {
                state.action = Some(action);
                return Next::Again(state.knocking.pause());
            }
            Ok(None) => Err(Gate::busy(&self.lock_folder)),
            Err(failure) => Err(failure),
        };
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Next::Over
    }
}
