//! Faults that a test can inject into a [`MemoryServer`](super::MemoryServer). They need the feature `testing`.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use lock_core::spi::Mutex;
use lock_core::spi::with_waker;
use lock_core::{AttemptId, ErrorKind, LockError, Operation};

use crate::{MemoryOptions, Replies};

/// What happens to one request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The request fails with this error, and the server does nothing.
    Fail(LockError),
    /// The server carries out the request, and the reply is lost: the client sees an unreachable server.
    DropReply,
    /// The backend panics.
    Panic,
    /// The request waits at the gate before the server carries it out.
    Delay(Gate),
    /// The server carries out the request, and the reply waits at the gate.
    DelayReply(Gate),
}

/// Holds up requests or replies until it is opened. It is cheap to clone.
///
/// ```
/// # use lock_core::*;
/// # use lock_memory::{MemoryServer, faults::{Fault, Gate}};
/// # lock_memory::example(async |_| {
/// # let server = MemoryServer::new();
/// # let guard = server.client()?.mutex("orders/42")?.acquire().await?;
/// let gate = Gate::new();
/// server.faults().inject(Operation::Release, Fault::DelayReply(gate.clone()));
/// let (released, ()) = tokio::join!(guard.release(), async {
///     gate.reached().await; // the server has released the lock, and its reply is on its way
///     gate.open();
/// });
/// # released
/// # });
/// ```
#[derive(Clone, Default)]
pub struct Gate(Arc<Mutex<GateState>>);

#[derive(Default)]
struct GateState {
    open: bool,
    arrived: usize,
    waiting: Vec<Waker>,
}

impl Gate {
    /// Creates a closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets everything through, now and later.
    pub fn open(&self) {
        let waiting = {
            let mut state = self.0.lock();
            state.open = true;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until a request or a reply has arrived at the gate.
    ///
    /// # Cancel safety
    /// The future may be dropped at any time.
    pub async fn reached(&self) {
        self.wait_for(|state| state.arrived > 0).await;
    }

    async fn pass(&self) {
        let waiting = {
            let mut state = self.0.lock();
            state.arrived += 1;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
        self.wait_for(|state| state.open).await;
    }

    async fn wait_for(&self, condition: impl Fn(&GateState) -> bool) {
        poll_fn(|context| {
            with_waker(context, |waker| {
                let mut state = self.0.lock();
                if condition(&state) {
                    return Poll::Ready(());
                }
                state.waiting.extend(waker.take());
                Poll::Pending
            })
        })
        .await;
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Gate").field("open", &self.0.lock().open).finish_non_exhaustive()
    }
}

/// The faults of a server. Injected faults apply to the next requests of their kind, one each, in order.
///
/// ```
/// # use lock_core::*;
/// # use lock_memory::{MemoryServer, faults::Fault};
/// # lock_memory::example(async |_| {
/// let server = MemoryServer::new();
/// let lock = server.client()?.mutex("orders/42")?;
/// let refusal = LockError::new(ErrorKind::Denied, Operation::Acquire);
/// server.faults().inject(Operation::Acquire, Fault::Fail(refusal));
/// assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Denied);
///
/// server.faults().sever();
/// assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Unreachable);
/// server.faults().heal();
/// lock.acquire().await?.release().await?;
/// # Ok(()) });
/// ```
#[derive(Debug, Default)]
pub struct Faults(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    severed: bool,
    injected: Vec<(Operation, VecDeque<Fault>)>,
    /// The waiters at the server, to be woken when it becomes unreachable.
    watchers: HashMap<AttemptId, Waker>,
}

impl Faults {
    /// Injects `fault` into the next request of this kind that has no fault yet.
    pub fn inject(&self, operation: Operation, fault: Fault) {
        let mut state = self.0.lock();
        match state.injected.iter_mut().find(|(of, _)| *of == operation) {
            Some((_, faults)) => faults.push_back(fault),
            None => state.injected.push((operation, VecDeque::from([fault]))),
        }
    }

    /// Makes the server unreachable: requests and waits fail until [`Faults::heal`].
    pub fn sever(&self) {
        let watchers = {
            let mut state = self.0.lock();
            state.severed = true;
            std::mem::take(&mut state.watchers)
        };
        watchers.into_values().for_each(Waker::wake);
    }

    /// Makes the server reachable again.
    pub fn heal(&self) {
        self.0.lock().severed = false;
    }

    /// Completes when the server is unreachable.
    pub(super) fn poll_outage(&self, id: AttemptId, context: &Context<'_>) -> Poll<Outage> {
        with_waker(context, |waker| {
            let mut state = self.0.lock();
            if state.severed {
                return Poll::Ready(Outage(Operation::Acquire));
            }
            *waker = waker.take().and_then(|waker| state.watchers.insert(id, waker));
            Poll::Pending
        })
    }

    /// Removes the attempt from the watchers when the returned value is dropped.
    pub(super) fn watch(&self, id: AttemptId) -> Watch<'_> {
        Watch { faults: self, id }
    }

    pub(super) async fn before(
        &self,
        operation: Operation,
        options: &MemoryOptions,
    ) -> Result<Option<Fault>, LockError> {
        if options.replies == Replies::Later {
            tokio::task::yield_now().await;
        }
        let fault = {
            let mut state = self.0.lock();
            if state.severed {
                return Err(Outage(operation).into_error());
            }
            state
                .injected
                .iter_mut()
                .find(|(of, _)| *of == operation)
                .and_then(|(_, faults)| faults.pop_front())
        };
        match fault {
            Some(Fault::Fail(error)) => Err(error),
            Some(Fault::Panic) => panic_on_request(),
            Some(Fault::Delay(gate)) => {
                gate.pass().await;
                Ok(None)
            }
            later => Ok(later),
        }
    }

    pub(super) async fn after(&self, operation: Operation, fault: Option<Fault>) -> Result<(), LockError> {
        match fault {
            Some(Fault::DropReply) => return Err(Outage(operation).into_error()),
            Some(Fault::DelayReply(gate)) => gate.pass().await,
            _ => {}
        }
        if self.0.lock().severed { Err(Outage(operation).into_error()) } else { Ok(()) }
    }
}

#[allow(clippy::panic, reason = "the test asked for it")]
fn panic_on_request() -> ! {
    panic!("a panic on request")
}

pub(super) struct Watch<'a> {
    faults: &'a Faults,
    id: AttemptId,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let waker = self.faults.0.lock().watchers.remove(&self.id);
        drop(waker);
    }
}

/// The server is unreachable.
pub(super) struct Outage(Operation);

impl Outage {
    pub(super) fn into_error(self) -> LockError {
        LockError::new(ErrorKind::Unreachable, self.0)
            .because("the connection to the memory server is cut")
            .retryable()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::wakers::waker_with_an_end;

    #[test]
    fn a_waker_that_is_replaced_may_come_back_with_a_fault() {
        let faults = Arc::new(Faults::default());
        let severs = Arc::clone(&faults);
        let waker = waker_with_an_end(move || severs.sever());
        let id = AttemptId::new(1);
        assert!(faults.poll_outage(id, &Context::from_waker(&waker)).is_pending());
        drop(waker);
        assert!(faults.poll_outage(id, &Context::from_waker(Waker::noop())).is_pending());
        assert!(faults.poll_outage(id, &Context::from_waker(Waker::noop())).is_ready());
    }
}
