//! Runs a short action in the gate: at once if the gate is free, otherwise on the watcher's thread.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use lock_core::spi::Mutex;
use lock_core::with_waker;

use crate::attempt::{Knocking, Means};
use crate::failure::Failure;
use crate::folder::Place;
use crate::gate::Gate;
use crate::watcher::{Next, Sleeper};

type Action<T> = Box<dyn FnOnce(&Gate) -> Result<T, Failure> + Send>;

struct Errand<T> {
    place: Arc<Place>,
    patience: Duration,
    state: Mutex<State<T>>,
}

struct State<T> {
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
    means: &Means,
    action: impl FnOnce(&Gate) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let state = State {
        action: Some(Box::new(action)),
        knocking: Knocking::since(Instant::now()),
        result: None,
        waker: None,
    };
    let errand = Arc::new(Errand {
        place: Arc::clone(&means.place),
        patience: means.gate_patience,
        state: Mutex::new(state),
    });
    let mut care = None;
    if let Next::Again(pause) = errand.look() {
        care = Some(means.watcher.look_after(Arc::clone(&errand) as Arc<dyn Sleeper>, pause));
    }
    let result = poll_fn(|context| {
        with_waker(context, |waker| {
            let mut state = errand.state.lock();
            if let Some(result) = state.result.take() {
                return Poll::Ready(result);
            }
            std::mem::swap(&mut state.waker, waker);
            Poll::Pending
        })
    })
    .await;
    drop(care);
    result
}

impl<T> Errand<T> {}

impl<T: Send> Sleeper for Errand<T> {
    fn look(&self) -> Next {
        let mut state = self.state.lock();
        let Some(action) = state.action.take() else {
            return Next::Over;
        };
        let result = match Gate::enter(&self.place) {
            Ok(Some(gate)) => gate.check_layout().and_then(|()| action(&gate)),
            Ok(None) if state.knocking.lasts() < self.patience => {
                state.action = Some(action);
                return Next::Again(state.knocking.pause());
            }
            Ok(None) => Err(Gate::busy(&self.place)),
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
