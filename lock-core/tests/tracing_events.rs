//! Tests of the events that the core sends to `tracing`: one target, and for each lock what happens to it, at a level
//! that matches its importance.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "also in shared functions of the tests"
)]

mod support;

use std::cell::RefCell;
use std::io::{Result, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::time::Duration;

use lock_core::{
    ClientBuilder, ErrorKind, Hold, LockError, LockListener, LockOptions, LossReason, Operation, Owner, Wait,
};
use lock_memory::faults::{Fault, Gate};
use lock_memory::{Loss, MemoryOptions, MemoryServer, Told};
use support::{ByHand, LEASE, SOON, Timed, eventually, name};
use tracing::Instrument;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

/// The subscriber panics at all that is logged about this server.
const PANICS: &str = "test://panics";

/// What is to be done when this thread logs that a lock was granted.
type AtGrant = Box<dyn FnOnce()>;

thread_local! {
    static AT_GRANT: RefCell<Option<AtGrant>> = const { RefCell::new(None) };
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        let text = str::from_utf8(bytes).unwrap();
        assert!(!text.contains(PANICS), "on purpose");
        let is_grant = text.contains(" granted ");
        if is_grant && let Some(at_grant) = AT_GRANT.take() {
            at_grant();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Lines {
    /// All lines that this program logs. Tests find their own lines by the server's name.
    fn kept() -> &'static Self {
        static LINES: OnceLock<Lines> = OnceLock::new();
        static INSTALLED: Once = Once::new();
        let lines = LINES.get_or_init(Self::default);
        INSTALLED.call_once(|| {
            let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).with_ansi(false);
            subscriber.with_max_level(tracing::Level::TRACE).with_span_events(FmtSpan::CLOSE).init();
        });
        lines
    }

    fn with(&self, parts: &[&str]) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let has_all = |line: &&str| parts.iter().all(|part| line.contains(part));
        text.lines().filter(has_all).map(str::to_owned).collect()
    }

    /// Returns whether there is a line with all these parts.
    fn have(&self, parts: &[&str]) -> bool {
        !self.with(parts).is_empty()
    }

    async fn come_to_have(&self, parts: &[&str]) {
        eventually(&format!("there is a line with {parts:?}"), || self.have(parts)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_have_the_lock_its_token_and_the_server_and_a_level_that_says_how_much_they_matter() {
    let lines = Lines::kept();
    let server = MemoryServer::new();
    let builder = || ClientBuilder::new().server("test://events").label("nightly");
    let client = server.client_with(MemoryOptions::new(), builder()).unwrap();
    let lock = client.mutex("orders/42").unwrap();
    let about = "lock=orders/42";
    let guard = lock.acquire().await.unwrap();
    let holder = format!("holder=nightly@{}", this_host());
    assert!(lines.have(&[
        "DEBUG",
        "distlock: granted",
        about,
        &holder,
        "token=1",
        "waited=",
        "test://events"
    ]));
    assert!(lock.try_acquire().await.unwrap().is_none());

    let other = server.client_with(MemoryOptions::new(), builder()).unwrap().mutex("orders/42").unwrap();
    let waiting = tokio::spawn(async move { other.acquire().await.unwrap() });
    lines.come_to_have(&["DEBUG", "distlock: waiting", about, &holder, "test://events"]).await;
    guard.release().await.unwrap();
    assert!(lines.have(&["DEBUG", "distlock: released", about, "token=1", "held=", "test://events"]));

    let guard = waiting.await.unwrap();
    server.lose(&name("orders/42"), Loss::Delete, Told::AtOnce);
    let reason = "reason=what stood for it was deleted";
    lines
        .come_to_have(&["ERROR", "distlock: lost", about, "token=2", reason, "held=", "test://events"])
        .await;
    drop(guard);
    let foreign: Vec<_> = lines.with(&["lock_core"]);
    assert!(foreign.is_empty(), "another target: {foreign:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_and_a_release_are_spans_of_their_caller_with_the_lock_and_its_token() {
    let lines = Lines::kept();
    let lock = MemoryServer::new().client().unwrap().mutex("orders/47").unwrap();
    let request = tracing::info_span!("request", id = 7);
    let guard = lock.acquire().instrument(request.clone()).await.unwrap();
    let again = guard.reenter().unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    drop(ByHand::begun(lock.acquire()));
    again.release().await.unwrap();
    guard.release().instrument(request).await.unwrap();

    let closed = |parts: &[&str]| lines.with(&[&["INFO", "lock=orders/47", "close"], parts].concat());
    assert_eq!(closed(&["acquire{"]).len(), 3, "a reentry is none");
    assert_eq!(
        closed(&["request{id=7}:acquire{", "Exclusive", "\"acquired\"", "waited=", "token=1"]).len(),
        1
    );
    assert_eq!(closed(&["\"busy\""]).len(), 1);
    assert_eq!(closed(&["\"cancelled\""]).len(), 1);
    assert_eq!(closed(&["request{id=7}:release{", "token=1", "held="]).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_waits_for_its_own_guard_is_a_warning_after_a_second() {
    let (lines, timed) = (Lines::kept(), Timed::new());
    let lock = timed.client.mutex("orders/waits for itself").unwrap();
    let first = lock.acquire().await.unwrap();
    let said = ["WARN", "distlock: a task waits for a lock that it holds itself", "orders/waits for itself"];
    let mut second = ByHand::begun(lock.acquire());
    timed.time.advance(Duration::from_millis(999));
    assert!(second.poll().is_none() && !lines.have(&said));
    timed.time.advance(Duration::from_millis(1));
    lines.come_to_have(&said).await;
    assert!(!second.is_woken());
    first.release().await.unwrap();
    second.output().await.unwrap().release().await.unwrap();

    // Another task's wait is none of its own.
    let held = lock.acquire().await.unwrap();
    let other = tokio::spawn(async move { lock.acquire().await.unwrap() });
    lines.come_to_have(&["waiting", "orders/waits for itself"]).await;
    timed.time.advance(Duration::from_secs(2));
    held.release().await.unwrap();
    drop(other.await.unwrap());
    assert_eq!(lines.with(&said).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_whose_release_is_not_confirmed_is_a_warning_that_names_the_lock() {
    let lines = Lines::kept();
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex("orders/46").unwrap();
    let said = ["WARN", "distlock: the release after a body is repeated", "lock=orders/46"];
    assert_eq!(lock.with_lock(async |_| Ok::<_, LockError>(41)).await.unwrap(), 41);
    assert!(!lines.have(&said));
    let broken = LockError::new(ErrorKind::Server, Operation::Connect).because("on purpose");
    server.faults().inject(Operation::Release, Fault::Fail(broken));
    assert_eq!(lock.with_lock(async |_| Ok::<_, LockError>(42)).await.unwrap(), 42);
    let warnings = lines.with(&said);
    assert!(warnings.len() == 1 && warnings[0].contains("on purpose"), "{warnings:?}");
}

fn this_host() -> String {
    lock_core::HolderInfo::of_this_process().host
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_that_fail_name_the_lock_and_are_a_warning_once_in_a_while() {
    let lines = Lines::kept();
    let timed = Timed::new();
    let lease = Duration::from_secs(60);
    let (interval, retry) = (lease / 4, lease / 32);
    let builder = Timed::builder(&timed.clock).server("test://renewals");
    let client = timed.server.client_with(MemoryOptions::new().lease(lease), builder).unwrap();
    let guard = client.mutex("orders/43").unwrap().acquire().await.unwrap();
    let failures = 7;
    for failure in 1..=failures {
        let away = LockError::new(ErrorKind::Unreachable, Operation::Renew).because("on purpose").retryable();
        timed.server.faults().inject(Operation::Renew, Fault::Fail(away));
        timed.time.advance(if failure == 1 { interval } else { retry });
        let failed = ["renewals failed", "orders/43", "on purpose", "test://renewals"];
        eventually("it has failed", || lines.with(&failed).len() == failure).await;
    }
    // The first, and the one after another ten seconds.
    let warnings = lines.with(&["WARN", "renewals failed", "test://renewals"]);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let suspect = ["WARN", "distlock: suspect", "lock=orders/43", "token=1", "remaining=", "test://renewals"];
    assert_eq!(lines.with(&suspect).len(), 1);
    timed.time.advance(retry);
    lines.come_to_have(&["INFO", "distlock: restored", "lock=orders/43", "test://renewals"]).await;
    tokio::time::timeout(SOON, guard.release()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_panics_keeps_no_lock() {
    let lines = Lines::kept();
    let server = MemoryServer::new();
    let client = server.client_with(MemoryOptions::new(), ClientBuilder::new().server(PANICS)).unwrap();
    let lock = client.mutex("orders/48").unwrap();
    let first = lock.acquire().await.unwrap();
    let second = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    lines.come_to_have(&["waiting", "orders/48", PANICS]).await;
    let away = LockError::new(ErrorKind::Unreachable, Operation::Release).retryable();
    server.faults().inject(Operation::Release, Fault::Fail(away));
    first.release().await.unwrap();
    second.await.unwrap().release().await.unwrap();
    lines.come_to_have(&["a release failed", "orders/48", PANICS]).await;

    let options = LockOptions::new().max_hold(Duration::from_millis(1));
    let short = client.mutex_with("orders/48", options).unwrap().acquire().await.unwrap();
    assert_eq!(short.lost().await, Some(LossReason::Expired));
    eventually("it is given back", || server.is_empty()).await;
    lines.come_to_have(&["lost", "orders/48", PANICS]).await;
    drop(short);
    client.close(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_panics_ends_no_renewals() {
    let (lines, timed) = (Lines::kept(), Timed::new());
    let (interval, retry) = (LEASE / 4, LEASE / 32);
    let builder = Timed::builder(&timed.clock).server(PANICS);
    let client = timed.server.client_with(MemoryOptions::new().lease(LEASE), builder).unwrap();
    let guard = client.mutex("orders/49").unwrap().acquire().await.unwrap();
    for (cause, pause) in [("the first time", interval), ("the second time", retry)] {
        let away = LockError::new(ErrorKind::Unreachable, Operation::Renew).because(cause).retryable();
        timed.server.faults().inject(Operation::Renew, Fault::Fail(away));
        timed.time.advance(pause);
        lines.come_to_have(&["renewals failed", "orders/49", cause, PANICS]).await;
    }
    timed.time.advance(retry);
    lines.come_to_have(&["restored", "orders/49", PANICS]).await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_that_are_lost_on_their_way_are_repeated_ever_more_slowly_and_are_a_warning_from_the_second_on()
 {
    const ROUNDS: u32 = 5;
    let lines = Lines::kept();
    let timed = Timed::new();
    let lock = timed.client.mutex("orders/45").unwrap();
    let delayed = || {
        let gate = Gate::new();
        timed.server.faults().inject(Operation::Acquire, Fault::DelayReply(gate.clone()));
        gate
    };
    let mut gate = delayed();
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap().release().await });
    for round in 0..ROUNDS {
        gate.reached().await;
        let next = delayed();
        let comes = tokio::spawn({
            let next = next.clone();
            async move { next.reached().await }
        });
        // The lease is over when its grant arrives.
        timed.time.advance(LEASE);
        let arrived = timed.clock.now();
        gate.open();
        eventually("there is another attempt", || {
            let has_come = comes.is_finished();
            if !has_come {
                timed.time.advance(Duration::from_millis(1));
            }
            has_come
        })
        .await;
        let paused = timed.clock.now().since(arrived);
        assert!(
            paused >= Duration::from_millis(5) * 2_u32.pow(round),
            "{paused:?} after {round} losses before"
        );
        gate = next;
    }
    gate.open();
    waiting.await.unwrap().unwrap();
    let said =
        ["WARN", "distlock: a grant was lost", "lock=orders/45", "reason=its lease expired", "remedy="];
    let warnings = lines.with(&said);
    // At the second and the fourth, so that a long series does not fill the log.
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("in_a_row=2") && warnings[1].contains("in_a_row=4"), "{warnings:?}");
}

/// Blocks in its first event until the test lets it go on.
struct Blocking {
    begun: Mutex<Sender<()>>,
    go_on: Mutex<Receiver<()>>,
    told: Mutex<Sender<u64>>,
}

impl LockListener for Blocking {
    fn on_abort(&self, _: &Hold, _: &LossReason) {}

    fn on_acquired(&self, hold: &Hold) {
        let _ = self.begun.lock().unwrap().send(());
        let _ = self.go_on.lock().unwrap().recv();
        self.told.lock().unwrap().send(hold.token().unwrap().get()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_events_of_a_listener_that_blocks_are_dropped_and_counted() {
    const ROUNDS: u64 = 600;
    let lines = Lines::kept();
    let lock = MemoryServer::new().client().unwrap().mutex("orders/44").unwrap();
    let ((begins, begun), (go_on, waits), (tells, told)) = (channel(), channel(), channel());
    let listener = Blocking { begun: Mutex::new(begins), go_on: Mutex::new(waits), told: Mutex::new(tells) };
    lock.add_listener(Arc::new(listener)).detach();
    lock.acquire().await.unwrap().release().await.unwrap();
    begun.recv_timeout(SOON).unwrap();
    for _ in 1..ROUNDS {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    drop(go_on);
    let mut tokens = Vec::new();
    while tokens.last() != Some(&ROUNDS) {
        tokens.push(told.recv_timeout(SOON).unwrap());
    }
    // The first one, which was already being delivered, and every other one of the last 1024.
    let last = (ROUNDS - 512 + 1)..=ROUNDS;
    assert_eq!(tokens, std::iter::once(1).chain(last).collect::<Vec<_>>());
    let dropped = format!("dropped={}", 2 * ROUNDS - 1 - 1024);
    assert!(lines.have(&["WARN", "lock=orders/44", &dropped]));
}

/// Two threads act for one owner: between the look of one at the line and its entry, the other leaves, and asks to write again.
#[tokio::test]
async fn a_reader_that_finds_its_own_writer_waiting_again_waits_again() {
    let _lines = Lines::kept();
    let server = MemoryServer::new();
    let (ours, theirs) = (server.client().unwrap(), server.client().unwrap());
    let held = theirs.mutex("catalog").unwrap().acquire().await.unwrap();
    let catalog = ours.rw_lock("catalog").unwrap();
    let (read, write, owner) = (catalog.read(), catalog.write(), Owner::new());
    let (writing, mut reading) = (
        ByHand::begun(write.acquire_as(owner, Wait::Forever)),
        ByHand::begun(read.acquire_as(owner, Wait::Forever)),
    );
    let lock_of_theirs = theirs.mutex("catalog").unwrap();
    let other = ByHand::begun(lock_of_theirs.acquire());
    held.release().await.unwrap();
    // It has the write side now, as the writer does, and has not entered the read side.
    reading.woken().await;
    let (again, asked) = channel();
    let write = Arc::clone(&write);
    AT_GRANT.set(Some(Box::new(move || {
        for _ in 0..2 {
            ByHand::of(write.release_as(owner)).poll();
        }
        let write = Arc::clone(&write);
        again.send(ByHand::begun(async move { write.acquire_as(owner, Wait::Forever).await })).unwrap();
    })));
    assert!(reading.poll().is_none());
    drop(writing);
    other.output().await.unwrap().release().await.unwrap();
    let writer = asked.recv().unwrap().output().await.unwrap().unwrap();
    let reader = reading.output().await.unwrap().unwrap();
    assert!(reader.hold().is_valid());
    writer.release().await.unwrap();
    reader.release().await.unwrap();
}
