//! Tests of the end: clients that close, guards that outlive their runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::support::{ByHand, LEASE, Recorder, SOON, Timed, Told, eventually, futures_block_on, name, next};
use lock_core::{
    ClientBuilder, EngineChoice, ErrorKind, Hold, HoldEnd, LockClient, LockListener, LossReason, Operation,
};
use lock_memory::faults::{Fault, Gate};
use lock_memory::{Loss, MemoryOptions, MemoryServer, Replies, Told as Notice};

const NAME: &str = "orders/42";

/// When it is woken for the first time, checks whether a client is idle.
struct Looks {
    client: LockClient,
    was_idle: Mutex<Option<bool>>,
}

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        let is_idle = pin!(self.client.idle()).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        self.was_idle.lock().unwrap().get_or_insert(is_idle);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_after_a_reported_loss_waits_for_its_undoing() {
    let timed = Timed::new();
    let by_the_server = || assert!(timed.server.lose(&name(NAME), Loss::Delete, Notice::AtOnce));
    let by_its_deadline = || {
        timed.server.faults().sever();
        timed.time.advance(LEASE);
    };
    for loses in [&by_the_server as &dyn Fn(), &by_its_deadline] {
        let guard = timed.client.mutex(NAME).unwrap().acquire().await.unwrap();
        let looks = Arc::new(Looks { client: timed.client.clone(), was_idle: Mutex::default() });
        let mut lost = pin!(guard.lost());
        let waker = Waker::from(Arc::clone(&looks));
        assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        loses();
        assert!(lost.await.is_some());
        assert_eq!(*looks.was_idle.lock().unwrap(), Some(false));
    }
}

/// The release is counted before the hold is forgotten: between the two, nothing would seem to be left to do.
#[tokio::test(flavor = "multi_thread")]
async fn close_that_comes_with_a_release_waits_for_it() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let guard = client.mutex(NAME).unwrap().acquire().await.unwrap();
    let looks = Arc::new(Looks { client: client.clone(), was_idle: Mutex::default() });
    let mut close = pin!(client.close(SOON));
    let waker = Waker::from(Arc::clone(&looks));
    let gate = Gate::new();
    server.faults().inject(Operation::Release, Fault::Delay(gate.clone()));
    assert!(close.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(guard);
    assert_eq!(*looks.was_idle.lock().unwrap(), Some(false));
    gate.open();
    close.await.unwrap();
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_after_a_wait_that_close_ended_waits_for_its_undoing() {
    let timed = Timed::new();
    let stranger = timed.other().mutex(NAME).unwrap().acquire().await.unwrap();
    let lock = timed.client.mutex(NAME).unwrap();
    let looks = Arc::new(Looks { client: timed.client.clone(), was_idle: Mutex::default() });
    let gate = Gate::new();
    timed.server.faults().inject(Operation::Cancel, Fault::Delay(gate.clone()));
    let mut waiting = pin!(lock.acquire());
    let waker = Waker::from(Arc::clone(&looks));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let closing = ByHand::begun(timed.client.close(SOON));
    assert_eq!(waiting.await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(*looks.was_idle.lock().unwrap(), Some(false));
    gate.open();
    closing.output().await.unwrap();
    drop(stranger);
}

#[tokio::test(flavor = "multi_thread")]
async fn close_waits_for_releases() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let gate = Gate::new();
    server.faults().inject(Operation::Release, Fault::Delay(gate.clone()));
    drop(client.mutex(NAME).unwrap().acquire().await.unwrap());
    gate.reached().await;
    let closing = client.clone();
    let closing = tokio::spawn(async move { closing.close(SOON).await });
    tokio::task::yield_now().await;
    assert!(!server.is_empty() && !closing.is_finished());
    gate.open();
    closing.await.unwrap().unwrap();
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_whose_grant_close_takes_away_unseen_ends_as_closed() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let lock = client.mutex(NAME).unwrap();
    let held = lock.acquire().await.unwrap();
    let waiter = ByHand::begun(lock.acquire());
    held.release().await.unwrap();
    waiter.woken().await;
    assert_eq!(client.close(Duration::ZERO).await.unwrap_err().kind(), ErrorKind::Unconfirmed);
    assert_eq!(waiter.output().await.unwrap_err().kind(), ErrorKind::Closed);
    eventually("it is released", || server.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn close_refuses_the_new_ends_the_waiting_and_lets_the_holders_finish() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let lock = client.mutex(NAME).unwrap();
    let guard = lock.acquire().await.unwrap();
    let waiting = Arc::clone(&lock);
    let waiting = tokio::spawn(async move { waiting.acquire().await.map(drop) });
    let stranger = server.client().unwrap().mutex("other").unwrap().acquire().await.unwrap();
    let remote = client.mutex("other").unwrap();
    let waiting_remotely = tokio::spawn(async move { remote.acquire().await.map(drop) });
    eventually("it waits", || server.waiting_for(&name("other")) == 1).await;

    let closing = client.clone();
    let closing = tokio::spawn(async move { closing.close(SOON).await });
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(waiting_remotely.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(client.mutex("new").unwrap_err().kind(), ErrorKind::Closed);
    assert!(guard.hold().is_valid() && !closing.is_finished());
    guard.release().await.unwrap();
    closing.await.unwrap().unwrap();
    drop(stranger);
    eventually("nothing is left", || server.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_still_held_when_close_runs_out_of_time_is_lost_and_its_holder_notified() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let lock = client.mutex(NAME).unwrap();
    let told = Recorder::listen(&lock);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(next(&told), Told::Acquired);
    let error = client.close(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unconfirmed);
    assert_eq!(next(&told), Told::Abort(LossReason::ClientClosed));
    assert_eq!(guard.hold().end(), Some(HoldEnd::Lost(LossReason::ClientClosed)));
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn close_waits_for_the_abort_margin_only_where_something_was_held() {
    let timed = Timed::new();
    let margin = Duration::from_secs(600);
    let builder = Timed::builder(&timed.clock).abort_margin(margin);
    let client = timed.server.client_with(MemoryOptions::new(), builder).unwrap();
    let _holder = timed.other().mutex(NAME).unwrap().acquire().await.unwrap();
    let lock = client.mutex(NAME).unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    eventually("it waits", || timed.server.waiting_for(&name(NAME)) == 1).await;
    timed.server.faults().sever();
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    let begun = timed.clock.now();
    let closing = tokio::spawn(async move { client.close(Duration::from_secs(2)).await });
    eventually("it closes", || {
        timed.time.advance(Duration::from_millis(100));
        closing.is_finished()
    })
    .await;
    assert_eq!(closing.await.unwrap().unwrap_err().kind(), ErrorKind::Unconfirmed);
    let passed = timed.clock.now().since(begun);
    assert!(passed < margin, "{passed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_answered_when_close_returns_is_given_up() {
    let fails = |server: &MemoryServer| server.faults().sever();
    let hangs = |server: &MemoryServer| {
        server.faults().inject(Operation::Release, Fault::Delay(Gate::new()));
    };
    for goes_wrong in [&fails as &dyn Fn(&MemoryServer), &hangs] {
        let server = MemoryServer::new();
        let client = server.client().unwrap();
        let guard = client.mutex(NAME).unwrap().acquire().await.unwrap();
        goes_wrong(&server);
        drop(guard);
        assert_eq!(client.close(Duration::ZERO).await.unwrap_err().kind(), ErrorKind::Unconfirmed);
        tokio::time::timeout(SOON, client.idle()).await.expect("nothing goes on");
        assert!(!server.is_empty());
    }
}

/// Creates a client whose handles have all been dropped, while its holds could not be released. Returns what shows
/// whether the client has ended.
async fn left_alone(timed: &Timed) -> Weak<dyn LockListener> {
    let lock = timed.other().mutex(NAME).unwrap();
    let listener: Arc<dyn LockListener> = Arc::new(|_: &Hold, _: &LossReason| {});
    let ends_with_it = Arc::downgrade(&listener);
    lock.add_listener(listener).detach();
    let guard = lock.acquire().await.unwrap();
    timed.server.faults().sever();
    drop((guard, lock));
    ends_with_it
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_last_handle_is_gone_gives_up_after_a_minute() {
    let timed = Timed::new();
    let client = left_alone(&timed).await;
    timed.time.advance(Duration::from_secs(59));
    assert!(client.upgrade().is_some(), "it gave up before");
    eventually("the client ends", || {
        timed.time.advance(Duration::from_secs(1));
        client.upgrade().is_none()
    })
    .await;
    assert!(!timed.server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_last_handle_is_gone_releases_what_it_can_within_a_minute() {
    let timed = Timed::new();
    let client = left_alone(&timed).await;
    timed.time.advance(Duration::from_secs(50));
    timed.server.faults().heal();
    // In steps: a request that failed before may say so later, and is repeated some time after that.
    let mut steps = std::iter::repeat_n(Duration::from_millis(100), 90);
    eventually("it is released", || {
        steps.next().into_iter().for_each(|step| timed.time.advance(step));
        timed.server.is_empty()
    })
    .await;
    eventually("the client ends", || client.upgrade().is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_still_holds_something_does_not_give_up() {
    let timed = Timed::new();
    let client = timed.other();
    let held = client.mutex("held").unwrap().acquire().await.unwrap();
    let guard = client.mutex(NAME).unwrap().acquire().await.unwrap();
    timed.server.faults().sever();
    drop((guard, client));
    for _ in 0..30 {
        timed.time.advance(Duration::from_secs(10));
        tokio::task::yield_now().await;
    }
    timed.server.faults().heal();
    eventually("it is released", || {
        timed.time.advance(Duration::from_secs(1));
        timed.server.len() == 1
    })
    .await;
    assert!(held.hold().is_valid());
}

#[test]
fn a_guard_may_be_dropped_inside_outside_and_after_the_runtime() {
    for engine in [EngineChoice::Own, EngineChoice::Caller] {
        let server = MemoryServer::new();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let options = MemoryOptions::new().replies(Replies::Later).lease(Duration::from_secs(5));
        let client = runtime
            .block_on(async { server.client_with(options, ClientBuilder::new().engine(engine)).unwrap() });
        let acquire = || runtime.block_on(client.mutex(NAME).unwrap().acquire()).unwrap();

        let guard = acquire();
        runtime.block_on(async { drop(guard) });
        runtime.block_on(eventually("released inside", || server.is_empty()));

        drop(acquire());
        runtime.block_on(eventually("released outside", || server.is_empty()));

        let guard = acquire();
        drop(runtime);
        drop(guard);
        // On a runtime that has ended no task sends a release: the lease ends the hold.
        let watching = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let closed = watching.block_on(client.close(SOON)).map_err(|error| error.kind());
        let expected = if engine == EngineChoice::Own { Ok(()) } else { Err(ErrorKind::Unconfirmed) };
        assert_eq!(closed, expected, "{engine:?}");
        watching.block_on(eventually("gone after the runtime", || server.is_empty()));
    }
}

#[test]
fn a_waiter_on_a_runtime_that_has_ended_gets_an_error() {
    let server = MemoryServer::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client = runtime.block_on(async {
        let builder = ClientBuilder::new().engine(EngineChoice::Caller);
        server.client_with(MemoryOptions::new().replies(Replies::Later), builder).unwrap()
    });
    let lock = client.mutex(NAME).unwrap();
    let stranger = runtime.block_on(server.client().unwrap().mutex(NAME).unwrap().acquire()).unwrap();
    let mut waiting = Box::pin(lock.acquire());
    runtime.block_on(async {
        let first = crate::support::DropAfter::new(1, waiting.as_mut()).await;
        assert!(first.is_none());
    });
    drop(runtime);
    assert_eq!(futures_block_on(waiting).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(futures_block_on(lock.acquire()).unwrap_err().kind(), ErrorKind::Closed);
    // No task undoes what the attempt has left at the server.
    assert_eq!(futures_block_on(client.close(SOON)).unwrap_err().kind(), ErrorKind::Unconfirmed);
    drop(stranger);
}

/// When it is woken, closes a client; keeps the outcome.
struct Closes {
    client: LockClient,
    outcome: Mutex<Option<Result<(), ErrorKind>>>,
}

impl Wake for Closes {
    fn wake(self: Arc<Self>) {
        *self.outcome.lock().unwrap() =
            Some(futures_block_on(self.client.close(SOON)).map_err(|error| error.kind()));
    }
}

#[test]
fn close_as_soon_as_a_release_ends_with_its_runtime_is_not_confirmed() {
    let server = MemoryServer::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let options = MemoryOptions::new().lease(LEASE);
    let client = runtime
        .block_on(async { server.client_with(options, ClientBuilder::new().engine(EngineChoice::Caller)) })
        .unwrap();
    let guard = runtime.block_on(client.mutex(NAME).unwrap().acquire()).unwrap();
    let gate = Gate::new();
    server.faults().inject(Operation::Release, Fault::Delay(gate.clone()));
    runtime.block_on(async {
        drop(guard);
        gate.reached().await;
    });
    let closes = Arc::new(Closes { client: client.clone(), outcome: Mutex::default() });
    let mut idle = pin!(client.idle());
    let waker = Waker::from(Arc::clone(&closes));
    assert!(idle.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(runtime);
    gate.open();
    assert_eq!(*closes.outcome.lock().unwrap(), Some(Err(ErrorKind::Unconfirmed)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_its_task_left_behind_stays_until_it_is_bounded_or_closed() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let lock = client.mutex(NAME).unwrap();
    tokio::spawn(async move { lock.lock().await.unwrap() }).await.unwrap();
    // No owner has the lock any more, but it is still held.
    assert!(client.mutex(NAME).unwrap().is_locked());
    assert!(!server.is_empty());
    assert_eq!(client.close(Duration::ZERO).await.unwrap_err().kind(), ErrorKind::Unconfirmed);
    assert!(server.is_empty());
}

/// The engines of this program by the ids of their threads; tests beside this one have some, too.
#[cfg(target_os = "linux")]
fn engines() -> std::collections::HashSet<std::ffi::OsString> {
    let is_engine = |thread: &std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("comm"))
            .is_ok_and(|name| name.starts_with("distlock-engine"))
    };
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    threads.flatten().filter(is_engine).map(|thread| thread.file_name()).collect()
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_last_handle_is_gone_ends_its_thread() {
    const CLIENTS: usize = 32;
    let server = MemoryServer::new();
    let before = engines();
    let clients: Vec<_> = (0..CLIENTS).map(|_| server.client().unwrap()).collect();
    for client in &clients {
        let lock = client.mutex(NAME).unwrap();
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    // A thread names itself when it first runs.
    let mut started = before.clone();
    eventually("the engines run", || {
        started = &engines() - &before;
        started.len() >= CLIENTS
    })
    .await;
    drop(clients);
    let ended = || started.difference(&engines()).count();
    eventually("the engines have ended", || ended() >= CLIENTS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_closes_the_client_in_order() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let (signal, signalled) = tokio::sync::oneshot::channel::<()>();
    let closed = client.close_on(signalled, Duration::from_secs(60));
    let guard = client.mutex(NAME).unwrap().acquire().await.unwrap();
    let worker = client.clone();
    let worker = tokio::spawn(async move {
        worker.closing().await;
        guard.release().await
    });
    signal.send(()).unwrap();
    closed.await.unwrap();
    worker.await.unwrap().unwrap();
    assert_eq!(client.mutex(NAME).unwrap_err().kind(), ErrorKind::Closed);
    client.closing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_when_the_time_after_a_signal_is_over_is_lost_by_the_programs_own_doing() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let guard = client.mutex(NAME).unwrap().acquire().await.unwrap();
    let error = client.close_on(async {}, Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unconfirmed);
    assert_eq!(guard.lost().await, Some(LossReason::ClientClosed));
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wait_for_a_signal_keeps_no_client_alive_and_its_panic_is_an_error() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let (signal, signalled) = tokio::sync::oneshot::channel::<()>();
    let closed = client.close_on(signalled, Duration::from_secs(60));
    let panicked = client.close_on(async { panic!("on purpose") }, Duration::from_secs(60)).await;
    assert_eq!(panicked.unwrap_err().kind(), ErrorKind::Internal);
    client.ping().await.unwrap();
    drop(client.mutex(NAME).unwrap().acquire().await.unwrap());
    drop(client);
    eventually("the release", || server.is_empty()).await;
    drop(signal);
    closed.await.unwrap();
}

#[test]
fn without_a_runtime_the_engine_waits_for_the_signal() {
    let client = MemoryServer::new().client().unwrap();
    let (signal, signalled) = tokio::sync::oneshot::channel::<()>();
    let closed = client.close_on(signalled, Duration::from_secs(60));
    signal.send(()).unwrap();
    futures_block_on(closed).unwrap();
    assert_eq!(client.mutex(NAME).unwrap_err().kind(), ErrorKind::Closed);
}
