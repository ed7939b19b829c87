//! What a client counts and measures, through the facade of the crate `metrics`. Without the feature `metrics`, nothing
//! here does anything.
//!
//! A recorder is foreign code, which may block or panic: nothing is recorded under a mutex or on the deadline thread.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use record::{Key, key, record};
use tokio::runtime::Handle;

use crate::runtime::Mutex;
use crate::types::{LockName, LossReason, Mode, Operation};

const ACQUIRE_WAIT: &str = "distlock_acquire_wait_seconds";
const HOLD: &str = "distlock_hold_seconds";
const HOLDS: &str = "distlock_holds";
const WAITERS: &str = "distlock_waiters";
const LOST: &str = "distlock_lost_total";
const RENEWAL: &str = "distlock_renewal_seconds";
const HEADROOM: &str = "distlock_lease_remaining_min_seconds";
const REQUESTS: &str = "distlock_backend_requests_total";
const SKIPPED: &str = "distlock_skipped_total";
const LEADER: &str = "distlock_leader";
const TERMS: &str = "distlock_terms_total";

/// Upper bounds for the histograms of times, in seconds: from a free lock near by to a job of an hour. An exporter that shows
/// histograms as summaries otherwise takes them as its buckets.
///
/// ```
/// assert!(lock_core::METRIC_BUCKETS.is_sorted());
/// ```
#[cfg(feature = "metrics")]
pub const METRIC_BUCKETS: [f64; 9] = [0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0];

/// How locks are held. The numbers of permits are no labels, because they can be many.
const MODES: [&str; 3] = ["exclusive", "shared", "permits"];

/// How a wait for a lock ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WaitOutcome {
    Acquired,
    Busy,
    Failed,
    Lost,
    /// The caller dropped the future.
    Cancelled,
}

const OUTCOMES: [&str; 5] = ["acquired", "busy", "failed", "lost", "cancelled"];

impl WaitOutcome {
    pub(crate) fn word(self) -> &'static str {
        OUTCOMES[self as usize]
    }
}

const LOSSES: [(LossReason, &str); 7] = [
    (LossReason::Expired, "expired"),
    (LossReason::Deleted, "deleted"),
    (LossReason::Taken, "taken"),
    (LossReason::SessionClosed, "session_closed"),
    (LossReason::ClientClosed, "client_closed"),
    (LossReason::ConnectionLost, "connection_lost"),
    (LossReason::Broken, "broken"),
];

/// The requests that are counted.
const OPERATIONS: [(Operation, &str); 9] = [
    (Operation::Acquire, "acquire"),
    (Operation::Renew, "renew"),
    (Operation::Release, "release"),
    (Operation::Cancel, "cancel"),
    (Operation::Inspect, "inspect"),
    (Operation::Break, "break"),
    (Operation::Describe, "describe"),
    (Operation::Remember, "remember"),
    (Operation::Ping, "ping"),
];

const RESULTS: [&str; 3] = ["ok", "error", "unanswered"];

/// The keys of all series of a client, without the names of locks. They are made once, because each needs memory.
struct AllSeries {
    by_mode: [SeriesOfLocks; 3],
    skipped: Key,
    /// Of elections, whose names are labels: a program stands for few.
    leader: Key,
    terms: Key,
    renewal: Key,
    requests: [(Operation, [Key; 3]); 9],
}

/// The series of the locks that are held in one mode.
struct SeriesOfLocks {
    waits: [Key; 5],
    hold: Key,
    holds: Key,
    waiters: Key,
    lost: [(LossReason, Key); 7],
}

impl AllSeries {
    fn new(backend: &'static str, is_by_lock: bool) -> Self {
        // Makes a series, and makes it visible with its first value.
        let series = |name, labels: &[(&'static str, &'static str)], first: Option<Value>| {
            let key = key(name, &[&[("backend", backend)], labels].concat());
            if let Some(first) = first {
                record(&key, None, first);
            }
            key
        };
        // With the names of locks as labels, they are visible from the first use of a lock.
        let first = |value| (!is_by_lock).then_some(value);
        let of_locks = |mode| {
            let series_by =
                |name, label, value, first| series(name, &[("mode", mode), (label, value)], first);
            let lost = |reason| series_by(LOST, "reason", reason, first(Value::Count(0)));
            SeriesOfLocks {
                waits: OUTCOMES
                    .map(|outcome| series_by(ACQUIRE_WAIT, "outcome", outcome, first(Value::NoTime))),
                hold: series(HOLD, &[("mode", mode)], first(Value::NoTime)),
                holds: series(HOLDS, &[("mode", mode)], first(Value::Change(0.0))),
                waiters: series(WAITERS, &[("mode", mode)], first(Value::Change(0.0))),
                lost: LOSSES.map(|(reason, label)| (reason, lost(label))),
            }
        };
        let of_requests = |op| {
            RESULTS.map(|result| series(REQUESTS, &[("op", op), ("result", result)], Some(Value::Count(0))))
        };
        Self {
            by_mode: MODES.map(of_locks),
            skipped: series(SKIPPED, &[], first(Value::Count(0))),
            leader: series(LEADER, &[], None),
            terms: series(TERMS, &[], None),
            renewal: series(RENEWAL, &[], Some(Value::NoTime)),
            requests: OPERATIONS.map(|(operation, label)| (operation, of_requests(label))),
        }
    }
}

/// What is recorded.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "nothing is recorded"))]
enum Value {
    /// Added to a counter.
    Count(u64),
    /// Added to a gauge.
    Change(f64),
    /// Set as that of a gauge.
    Level(f64),
    Time(Duration),
    /// Nothing yet, for times that are to come.
    NoTime,
}

/// The metrics of one client.
#[derive(Clone)]
pub(crate) struct Metrics {
    backend: &'static str,
    /// Whether the metrics of a lock have its name as a label. Names can be many, and each makes series of its own.
    is_by_lock: bool,
    series: Arc<AllSeries>,
}

/// The metrics of one lock in one mode.
#[derive(Clone, Copy)]
pub(crate) struct LockMetrics<'a> {
    all: &'a AllSeries,
    series: &'a SeriesOfLocks,
    name: &'a str,
    /// The lock's name, if it is a label.
    lock: Option<Named<'a>>,
}

/// The name of a lock as a label, after the label's own.
type Named<'a> = (&'static str, &'a str);

impl Metrics {
    /// Describes the metrics of a client, and makes each visible with its first value.
    pub(crate) fn new(backend: &'static str, is_by_lock: bool) -> Self {
        record::describe();
        let series = Arc::new(AllSeries::new(backend, is_by_lock));
        Headroom::publish(backend);
        Self { backend, is_by_lock, series }
    }

    /// Returns the metrics of this lock.
    pub(crate) fn of<'a>(&'a self, name: &'a LockName, mode: Mode) -> LockMetrics<'a> {
        let (all, name) = (&*self.series, name.as_str());
        let [exclusive, shared, permits] = &all.by_mode;
        let series = match mode {
            Mode::Exclusive => exclusive,
            Mode::Shared => shared,
            Mode::Permits { .. } => permits,
        };
        LockMetrics { all, series, name, lock: self.is_by_lock.then_some(("lock", name)) }
    }

    /// A request to the backend begins.
    pub(crate) fn request(&self, operation: Operation) -> CountedRequest<'_> {
        let keys = self.series.requests.iter().find(|(counted, _)| *counted == operation);
        CountedRequest(keys.map(|(_, keys)| keys))
    }

    /// A renewal was answered, or given up.
    pub(crate) fn renewed_in(&self, took: Duration) {
        record(&self.series.renewal, None, Value::Time(took));
    }

    /// Creates the headroom of a new group.
    pub(crate) fn headroom(&self) -> Headroom {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Headroom { backend: self.backend, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }
}

impl LockMetrics<'_> {
    /// A caller begins to wait (1.0), or waits no longer (-1.0).
    pub(crate) fn waiters(self, difference: f64) {
        record(&self.series.waiters, self.lock, Value::Change(difference));
    }

    pub(crate) fn waited(self, outcome: WaitOutcome, waited: impl FnOnce() -> Duration) {
        if record::IS_ON {
            record(&self.series.waits[outcome as usize], self.lock, Value::Time(waited()));
        }
    }

    /// The owner has received a hold.
    pub(crate) fn acquired(self) {
        record(&self.series.holds, self.lock, Value::Change(1.0));
    }

    /// Work was not done, because its slot had been used.
    pub(crate) fn skipped(self) {
        record(&self.all.skipped, self.lock, Value::Count(1));
    }

    /// A candidate stands for the election of this name (0.0, 0): from now on its series are there. It leads (1.0, 1), or leads no
    /// longer (-1.0, 0).
    pub(crate) fn leads(self, difference: f64, terms: u64) {
        let election = Some(("election", self.name));
        record(&self.all.leader, election, Value::Change(difference));
        record(&self.all.terms, election, Value::Count(terms));
    }

    /// A hold that its owner had received has ended.
    pub(crate) fn ended(self, held: impl FnOnce() -> Duration, loss: Option<LossReason>) {
        if record::IS_ON {
            record(&self.series.holds, self.lock, Value::Change(-1.0));
            record(&self.series.hold, self.lock, Value::Time(held()));
        }
        if let Some((_, key)) = self.series.lost.iter().find(|(reason, _)| loss == Some(*reason)) {
            record(key, self.lock, Value::Count(1));
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Metrics")
    }
}

/// A request to the backend. It is counted when it ends: unanswered, if it is dropped before its answer.
pub(crate) struct CountedRequest<'a>(Option<&'a [Key; 3]>);

impl CountedRequest<'_> {
    pub(crate) fn answered<T, E>(mut self, answer: &Result<T, E>) {
        if let Some([ok, error, _]) = self.0.take() {
            record(if answer.is_ok() { ok } else { error }, None, Value::Count(1));
        }
    }
}

impl Drop for CountedRequest<'_> {
    fn drop(&mut self) {
        // Work that no runtime takes any more may be dropped on the deadline thread, which is inside no runtime.
        if let Some([_, _, unanswered]) = self.0
            && Handle::try_current().is_ok()
        {
            record(unanswered, None, Value::Count(1));
        }
    }
}

/// How much of the leases of one group was left when they were last renewed, or could last not be renewed.
pub(crate) struct Headroom {
    backend: &'static str,
    number: u64,
}

/// The headroom of each group of this process, in seconds, by backend and group.
pub(super) static HEADROOMS: Mutex<BTreeMap<(&'static str, u64), f64>> = Mutex::new(BTreeMap::new());

impl Headroom {
    pub(crate) fn was(&self, left: impl FnOnce() -> Option<Duration>) {
        if let Some(left) = record::IS_ON.then(left).flatten() {
            HEADROOMS.lock().insert((self.backend, self.number), left.as_secs_f64());
            Self::publish(self.backend);
        }
    }

    /// Publishes the least headroom of all groups; infinite when there is no lease.
    fn publish(backend: &'static str) {
        let of_backend = (backend, 0)..=(backend, u64::MAX);
        let least = || {
            HEADROOMS
                .lock()
                .range(of_backend.clone())
                .fold(f64::INFINITY, |least, (_, left)| least.min(*left))
        };
        let mut published = None;
        // Another thread may publish an older value at the same time: the last one looks again.
        while record::IS_ON && published != Some(least()) {
            let least = least();
            record(&key(HEADROOM, &[("backend", backend)]), None, Value::Level(least));
            published = Some(least);
        }
    }
}

impl Drop for Headroom {
    fn drop(&mut self) {
        if record::IS_ON {
            HEADROOMS.lock().remove(&(self.backend, self.number));
            Self::publish(self.backend);
        }
    }
}

/// The way to the recorder.
#[cfg(feature = "metrics")]
mod record {
    pub(super) use metrics::Key;
    use metrics::{
        Label, Level, Metadata, Recorder, Unit, describe_counter, describe_gauge, describe_histogram,
    };

    use super::{
        ACQUIRE_WAIT, HEADROOM, HOLD, HOLDS, LEADER, LOST, Named, RENEWAL, REQUESTS, SKIPPED, TERMS, Value,
        WAITERS,
    };
    use crate::runtime::log::log;
    use crate::runtime::waker;

    pub(super) const IS_ON: bool = true;

    static METADATA: Metadata<'static> = Metadata::new("distlock", Level::INFO, Some("distlock"));

    fn contained(record: impl FnOnce()) {
        if waker::catch_panic(record).is_none() {
            log!(error, "a recorder of metrics panicked");
        }
    }

    pub(super) fn key(name: &'static str, labels: &[(&'static str, &'static str)]) -> Key {
        Key::from_parts(name, labels.iter().map(Label::from).collect::<Vec<_>>())
    }

    /// Records a value, with one more label if there is one.
    pub(super) fn record(key: &Key, named: Option<Named<'_>>, value: Value) {
        let with_name =
            named.map(|(label, name)| key.with_extra_labels(vec![Label::new(label, name.to_owned())]));
        let key = with_name.as_ref().unwrap_or(key);
        let to_recorder = |to: &dyn Recorder| match value {
            Value::Count(count) => to.register_counter(key, &METADATA).increment(count),
            Value::Change(difference) => to.register_gauge(key, &METADATA).increment(difference),
            Value::Level(level) => to.register_gauge(key, &METADATA).set(level),
            Value::Time(time) => to.register_histogram(key, &METADATA).record(time.as_secs_f64()),
            Value::NoTime => drop(to.register_histogram(key, &METADATA)),
        };
        contained(|| metrics::with_recorder(to_recorder));
    }

    const LEAST_LEFT: &str =
        "What was left of the lease that was nearest to its end when it was last renewed, or could not be";

    pub(super) fn describe() {
        contained(|| {
            describe_histogram!(
                ACQUIRE_WAIT,
                Unit::Seconds,
                "How long callers waited for a lock, by outcome"
            );
            describe_histogram!(HOLD, Unit::Seconds, "How long locks were held");
            describe_histogram!(RENEWAL, Unit::Seconds, "How long a renewal of leases took");
            describe_gauge!(HOLDS, Unit::Count, "Locks that are held");
            describe_gauge!(WAITERS, Unit::Count, "Callers that wait for a lock");
            describe_gauge!(HEADROOM, Unit::Seconds, LEAST_LEFT);
            describe_counter!(LOST, Unit::Count, "Held locks that were lost, by reason");
            describe_counter!(REQUESTS, Unit::Count, "Requests to the backend, by operation and result");
            describe_counter!(SKIPPED, Unit::Count, "Work that was not done, because its slot had been used");
            describe_gauge!(LEADER, Unit::Count, "Whether a candidate of this process leads the election");
            describe_counter!(TERMS, Unit::Count, "Terms that candidates of this process have begun");
        });
    }
}

#[cfg(not(feature = "metrics"))]
mod record {
    use super::{Named, Value};

    pub(super) const IS_ON: bool = false;

    pub(super) struct Key;

    pub(super) fn key(_: &'static str, _: &[(&'static str, &'static str)]) -> Key {
        Key
    }

    pub(super) fn record(_: &Key, _: Option<Named<'_>>, _: Value) {}

    pub(super) fn describe() {}
}
