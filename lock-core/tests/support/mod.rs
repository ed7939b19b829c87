//! Shared functions and types of the core's tests.

#![allow(dead_code, reason = "each test uses only some of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "not in a #[test] function, but only for tests")]

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll};
use std::time::Duration;

use lock_core::{
    ClientBuilder, Clock, DistributedLock, Hold, LockClient, LockListener, LockName, LossReason, ManualClock,
    Moment,
};
use lock_memory::{MemoryOptions, MemoryServer};

/// Long enough for everything that must happen, even on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// A server whose leases are measured with a clock that the test advances, and a client with leases of ten seconds.
pub(crate) struct Timed {
    pub(crate) server: MemoryServer,
    pub(crate) client: LockClient,
    pub(crate) time: ManualClock,
    pub(crate) clock: Clock,
}

pub(crate) const LEASE: Duration = Duration::from_secs(10);

impl Timed {
    pub(crate) fn new() -> Self {
        let (clock, time) = Clock::manual();
        let server = MemoryServer::with_clock(clock.clone());
        let client = server.client_with(MemoryOptions::new().lease(LEASE), Self::builder(&clock)).unwrap();
        Self { server, client, time, clock }
    }

    pub(crate) fn builder(clock: &Clock) -> ClientBuilder {
        ClientBuilder::new().clock(clock.clone())
    }

    /// Creates another client of the same server, without leases.
    pub(crate) fn other(&self) -> LockClient {
        self.server.client().unwrap()
    }
}

/// An event that a listener received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Acquired,
    Released,
    Suspect,
    Restored,
    Abort(LossReason),
}

/// A listener that forwards its events, and checks that the state of the hold changed first.
pub(crate) struct Recorder(Sender<Told>);

impl Recorder {
    pub(crate) fn new() -> (Arc<Self>, Receiver<Told>) {
        let (sender, receiver) = channel();
        (Arc::new(Self(sender)), receiver)
    }

    pub(crate) fn listen(lock: &Arc<dyn DistributedLock>) -> Receiver<Told> {
        let (recorder, receiver) = Self::new();
        lock.add_listener(recorder).detach();
        receiver
    }
}

impl LockListener for Recorder {
    fn on_abort(&self, hold: &Hold, reason: &LossReason) {
        assert!(!hold.is_valid(), "the level comes before the event");
        let _ = self.0.send(Told::Abort(*reason));
    }

    fn on_suspect(&self, _: &Hold) {
        let _ = self.0.send(Told::Suspect);
    }

    fn on_restored(&self, _: &Hold) {
        let _ = self.0.send(Told::Restored);
    }

    fn on_acquired(&self, _: &Hold) {
        let _ = self.0.send(Told::Acquired);
    }

    fn on_released(&self, _: &Hold) {
        let _ = self.0.send(Told::Released);
    }
}

/// Returns the next event of the listener.
pub(crate) fn next(told: &Receiver<Told>) -> Told {
    told.recv_timeout(SOON).expect("the listener is told something")
}

/// Asserts that the listener has no more events, after everything before has been delivered.
pub(crate) fn nothing_more(told: &Receiver<Told>, lock: &Arc<dyn DistributedLock>) {
    // Events of one lock are delivered in order, so if a marker arrives next, no other event was under way.
    let marker = futures_block_on(async { lock.acquire().await.unwrap().release().await });
    marker.unwrap();
    assert_eq!(next(told), Told::Acquired);
    assert_eq!(next(told), Told::Released);
    assert!(told.try_recv().is_err());
}

/// Runs a future on this thread, outside any runtime.
pub(crate) fn futures_block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

/// Polls the future at most `polls` times and then drops it; completes with `None` if it did not complete. Between
/// polls it waits to be woken.
pub(crate) struct DropAfter<F> {
    pub(crate) future: Pin<Box<F>>,
    pub(crate) polls: usize,
}

impl<F: Future> DropAfter<F> {
    pub(crate) fn new(polls: usize, future: F) -> Self {
        Self { future: Box::pin(future), polls }
    }
}

impl<F: Future> Future for DropAfter<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<F::Output>> {
        if self.polls == 0 {
            return Poll::Ready(None);
        }
        self.polls -= 1;
        match self.future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// A future that is polled by hand, and knows whether it wants to be polled again.
pub(crate) struct ByHand<F> {
    future: Pin<Box<F>>,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken(AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl<F: Future> ByHand<F> {
    pub(crate) fn of(future: F) -> Self {
        Self { future: Box::pin(future), woken: Arc::default() }
    }

    /// Polls the future once, which must not complete it.
    pub(crate) fn begun(future: F) -> Self {
        let mut by_hand = Self::of(future);
        assert!(by_hand.poll().is_none(), "it is ready at once");
        by_hand
    }

    pub(crate) fn poll(&mut self) -> Option<F::Output> {
        self.woken.0.store(false, Ordering::SeqCst);
        let waker = Arc::clone(&self.woken).into();
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::SeqCst)
    }

    /// Waits until it wants to be polled.
    pub(crate) async fn woken(&self) {
        eventually("the future is woken", || self.is_woken()).await;
    }

    /// Polls whenever the future wants it, until it completes.
    pub(crate) async fn output(mut self) -> F::Output {
        loop {
            if let Some(output) = self.poll() {
                return output;
            }
            self.woken().await;
        }
    }
}

/// Lets time pass until the next thing is due, unless that is later than `end`.
pub(crate) fn advance_to_next(time: &ManualClock, end: Moment) {
    if let Some(next) = time.next_alarm().filter(|next| *next <= end) {
        time.advance_to(next);
    }
}

/// Waits until `condition` holds; fails if that takes too long, and many looks: on a machine that hangs there are few.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + SOON;
    let mut looks = 0;
    while !condition() {
        looks += 1;
        assert!(looks < 10_000 || std::time::Instant::now() < deadline, "it never came to be: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
