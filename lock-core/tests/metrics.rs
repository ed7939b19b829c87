//! Tests of what a client counts and measures.

#![cfg(feature = "metrics")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "also in shared functions of the tests"
)]

mod support;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use lock_core::{ClientBuilder, EngineChoice, LossReason, Operation};
use lock_memory::faults::{Fault, Gate};
use lock_memory::{Loss, MemoryOptions, MemoryServer, Told as Notice};
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use support::{ByHand, LEASE, SOON, Timed, eventually, name};

/// The values of this program, as `name{label=value,…}`.
#[derive(Default)]
struct Values {
    described: Mutex<Vec<String>>,
    numbers: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    recorded: Mutex<BTreeMap<String, Arc<Recorded>>>,
}

#[derive(Default)]
struct Recorded(Mutex<Vec<f64>>);

impl HistogramFn for Recorded {
    fn record(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

fn spelled(key: &Key) -> String {
    let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
    format!("{}{{{}}}", key.name(), labels.join(","))
}

struct ToValues;

impl Recorder for ToValues {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        VALUES.described.lock().unwrap().push(key.as_str().to_owned());
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        VALUES.described.lock().unwrap().push(key.as_str().to_owned());
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        VALUES.described.lock().unwrap().push(key.as_str().to_owned());
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::clone(VALUES.numbers.lock().unwrap().entry(spelled(key)).or_default()))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        LOOKS.with_borrow(|looks| looks.iter().for_each(|look| look()));
        Gauge::from_arc(Arc::clone(VALUES.numbers.lock().unwrap().entry(spelled(key)).or_default()))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::clone(VALUES.recorded.lock().unwrap().entry(spelled(key)).or_default()))
    }
}

static VALUES: LazyLock<Values> = LazyLock::new(|| {
    metrics::set_global_recorder(ToValues).ok().unwrap();
    Values::default()
});

thread_local! {
    /// What the recorder does with each gauge that this thread records.
    static LOOKS: RefCell<Vec<Box<dyn Fn()>>> = const { RefCell::new(Vec::new()) };
}

fn counter(series: &str) -> Option<u64> {
    Some(VALUES.numbers.lock().unwrap().get(series)?.load(Ordering::SeqCst))
}

fn gauge(series: &str) -> Option<f64> {
    counter(series).map(f64::from_bits)
}

fn recorded(series: &str) -> Option<Vec<f64>> {
    Some(VALUES.recorded.lock().unwrap().get(series)?.0.lock().unwrap().clone())
}

async fn slots_and_terms(timed: &Timed) {
    // A slot that has run.
    let once = timed.client.once("report", "monday").unwrap();
    for skipped in [0, 1, 2] {
        let _guard = once.acquire().await.unwrap();
        assert_eq!(counter("distlock_skipped_total{backend=memory}"), Some(skipped));
    }

    // Terms: a candidate's series is there before it leads, and a mutex of the name is no term.
    let series = "distlock_leader{backend=memory,election=scheduler}";
    let terms = || counter("distlock_terms_total{backend=memory,election=scheduler}");
    let work = timed.client.mutex("scheduler").unwrap().acquire().await.unwrap();
    assert_eq!((gauge(series), terms()), (None, None));
    let election = timed.client.election("scheduler").unwrap();
    let campaign = ByHand::begun(election.campaign(""));
    assert_eq!((gauge(series), terms()), (Some(0.0), Some(0)));
    drop(campaign);
    work.release().await.unwrap();
    let leadership = election.campaign("").await.unwrap();
    assert_eq!((gauge(series), terms()), (Some(1.0), Some(1)));
    leadership.resign().await.unwrap();
    assert_eq!((gauge(series), terms()), (Some(0.0), Some(1)));
    let leadership = election.campaign("").await.unwrap();
    assert!(timed.server.lose(&name("scheduler"), Loss::Delete, Notice::AtOnce));
    assert_eq!(leadership.lost().await, Some(LossReason::Deleted));
    eventually("the term has ended", || gauge(series) == Some(0.0)).await;
    assert_eq!(terms(), Some(2));
    drop(leadership);
}

/// The metrics are those of the whole program, so this is one test.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_counts_and_measures_what_happens_to_its_locks() {
    LazyLock::force(&VALUES);
    let timed = Timed::new();
    // Zeros from the start.
    assert_eq!(gauge("distlock_holds{backend=memory,mode=exclusive}"), Some(0.0));
    assert_eq!(gauge("distlock_waiters{backend=memory,mode=exclusive}"), Some(0.0));
    assert_eq!(gauge("distlock_lease_remaining_min_seconds{backend=memory}"), Some(f64::INFINITY));
    assert_eq!(counter("distlock_lost_total{backend=memory,mode=exclusive,reason=connection_lost}"), Some(0));
    assert_eq!(
        counter("distlock_backend_requests_total{backend=memory,op=cancel,result=unanswered}"),
        Some(0)
    );
    assert_eq!(
        recorded("distlock_acquire_wait_seconds{backend=memory,mode=exclusive,outcome=busy}"),
        Some(vec![])
    );
    assert_eq!(VALUES.described.lock().unwrap().iter().collect::<std::collections::BTreeSet<_>>().len(), 11);
    assert_eq!(counter("distlock_skipped_total{backend=memory}"), Some(0));

    let lock = timed.client.mutex("a").unwrap();
    let guard = lock.acquire().await.unwrap();
    assert_eq!(gauge("distlock_holds{backend=memory,mode=exclusive}"), Some(1.0));
    let waiting = ByHand::begun(lock.acquire());
    assert_eq!(gauge("distlock_waiters{backend=memory,mode=exclusive}"), Some(1.0));
    drop(waiting);
    assert_eq!(gauge("distlock_waiters{backend=memory,mode=exclusive}"), Some(0.0));
    assert!(lock.try_acquire().await.unwrap().is_none());
    for outcome in ["acquired", "busy", "cancelled"] {
        let waited = recorded(&format!(
            "distlock_acquire_wait_seconds{{backend=memory,mode=exclusive,outcome={outcome}}}"
        ));
        assert_eq!(waited, Some(vec![0.0]), "{outcome}");
    }

    timed.time.advance(LEASE / 3);
    eventually("it is renewed", || {
        counter("distlock_backend_requests_total{backend=memory,op=renew,result=ok}") == Some(1)
    })
    .await;
    eventually("the headroom is known", || {
        gauge("distlock_lease_remaining_min_seconds{backend=memory}").is_some_and(f64::is_finite)
    })
    .await;
    let left = gauge("distlock_lease_remaining_min_seconds{backend=memory}").unwrap();
    // The renewal is due after a quarter of the lease, and may begin while the clock is on its way.
    assert!(left > 0.0 && left <= (LEASE * 3 / 4).as_secs_f64(), "{left}");
    assert!(recorded("distlock_renewal_seconds{backend=memory}").is_some_and(|times| !times.is_empty()));

    guard.release().await.unwrap();
    assert_eq!(gauge("distlock_holds{backend=memory,mode=exclusive}"), Some(0.0));
    assert_eq!(
        recorded("distlock_hold_seconds{backend=memory,mode=exclusive}"),
        Some(vec![(LEASE / 3).as_secs_f64()])
    );
    assert_eq!(counter("distlock_backend_requests_total{backend=memory,op=release,result=ok}"), Some(1));

    let guard = lock.acquire().await.unwrap();
    assert!(timed.server.lose(&name("a"), Loss::Delete, Notice::AtOnce));
    assert_eq!(guard.lost().await, Some(LossReason::Deleted));
    eventually("the loss is counted", || {
        counter("distlock_lost_total{backend=memory,mode=exclusive,reason=deleted}") == Some(1)
    })
    .await;
    assert_eq!(gauge("distlock_holds{backend=memory,mode=exclusive}"), Some(0.0));
    timed.client.status("a").await.unwrap();
    assert_eq!(counter("distlock_backend_requests_total{backend=memory,op=inspect,result=ok}"), Some(1));
    timed.client.ping().await.unwrap();
    assert_eq!(counter("distlock_backend_requests_total{backend=memory,op=ping,result=ok}"), Some(1));
    // A request that was dropped is not answered, and one in which the backend panics fails.
    let gate = Gate::new();
    timed.server.faults().inject(Operation::Inspect, Fault::DelayReply(gate.clone()));
    let asked = ByHand::begun(timed.client.status("a"));
    gate.reached().await;
    drop(asked);
    eventually("the dropped request is counted", || {
        counter("distlock_backend_requests_total{backend=memory,op=inspect,result=unanswered}") == Some(1)
    })
    .await;
    timed.server.faults().inject(Operation::Inspect, Fault::Panic);
    timed.client.status("a").await.unwrap_err();
    assert_eq!(counter("distlock_backend_requests_total{backend=memory,op=inspect,result=error}"), Some(1));
    assert_eq!(counter("distlock_backend_requests_total{backend=memory,op=inspect,result=ok}"), Some(1));
    drop((guard, lock));

    let reading = timed.client.rw_lock("a").unwrap().read().acquire().await.unwrap();
    let permit = timed.client.semaphore("a", 2).unwrap().acquire(1).await.unwrap();
    for (mode, holds) in [("exclusive", 0.0), ("shared", 1.0), ("permits", 1.0)] {
        let series = format!("distlock_holds{{backend=memory,mode={mode}}}");
        assert_eq!(gauge(&series), Some(holds), "{mode}");
    }
    drop((reading, permit));

    slots_and_terms(&timed).await;
    timed.client.close(Duration::from_secs(5)).await.unwrap();

    // The name only where it is asked for.
    let builder = ClientBuilder::new().metrics_by_lock();
    let client = MemoryServer::new().client_with(MemoryOptions::new(), builder).unwrap();
    let guard = client.mutex("orders/42").unwrap().acquire().await.unwrap();
    assert_eq!(gauge("distlock_holds{backend=memory,mode=exclusive,lock=orders/42}"), Some(1.0));
    guard.release().await.unwrap();
    assert_eq!(gauge("distlock_holds{backend=memory,mode=exclusive,lock=orders/42}"), Some(0.0));
    assert_eq!(gauge("distlock_holds{backend=memory,mode=exclusive}"), Some(0.0));

    std::thread::spawn(a_recorder_may_look_at_a_lock).join().unwrap();
}

/// No recorder runs under the mutex of a lock, also not if the client has no runtime any more.
fn a_recorder_may_look_at_a_lock() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (server, ended) = (MemoryServer::new(), runtime());
    let builder = ClientBuilder::new().engine(EngineChoice::Caller);
    let client =
        ended.block_on(async { server.client_with(MemoryOptions::new().lease(LEASE), builder) }).unwrap();
    drop(ended);
    let ((acquired, answer), looks) = (std::sync::mpsc::channel(), Arc::new(AtomicU64::new(0)));
    let looked = Arc::clone(&looks);
    std::thread::spawn(move || {
        let lock = client.mutex("orders/42").unwrap();
        let seen = lock.clone();
        let recorder = move || {
            seen.is_locked();
            looked.fetch_add(1, Ordering::SeqCst);
        };
        LOOKS.with_borrow_mut(|looks| looks.push(Box::new(recorder)));
        acquired.send(runtime().block_on(lock.acquire()).map(drop)).unwrap();
    });
    drop(answer.recv_timeout(SOON).expect("the recorder waits for the mutex of the lock"));
    assert!(looks.load(Ordering::SeqCst) > 0, "nothing was recorded");
}
