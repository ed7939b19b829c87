//! What a client counts and measures, through the facade of the crate `metrics`. Without the feature `metrics`, nothing
//! here does anything.
//!
//! A recorder is foreign code, which may block or panic: nothing is recorded under a mutex or on the deadline thread.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use record::{Key, key};

use crate::runtime::sync::Mutex;
use crate::types::loss::LossReason;
use crate::types::mode::Mode;
use crate::types::name::LockName;

/// Whether the metrics of a lock have its name as a label. Names can be many, and each makes series of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LockLabel {
    #[default]
    Absent,
    #[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "asked for with the feature only"))]
    Name,
}

/// The metrics of one client.
#[derive(Clone)]
pub(crate) struct Metrics {
    backend: &'static str,
    lock_label: LockLabel,
    series: Arc<Series>,
}

/// How a wait for a lock ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    Acquired,
    Busy,
    Failed,
    Lost,
    /// The caller dropped the future.
    Cancelled,
}

/// A request to the backend.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Request {
    Acquire,
    Renew,
    Release,
    Cancel,
    Inspect,
    Break,
    Describe,
    Remember,
    Ping,
}

/// How a request ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reply {
    Ok,
    Error,
    /// It was dropped before it was answered.
    Unanswered,
}

impl Outcome {
    const ALL: [Self; 5] = [Self::Acquired, Self::Busy, Self::Failed, Self::Lost, Self::Cancelled];

    fn label(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Busy => "busy",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Request {
    const ALL: [Self; 9] = [
        Self::Acquire,
        Self::Renew,
        Self::Release,
        Self::Cancel,
        Self::Inspect,
        Self::Break,
        Self::Describe,
        Self::Remember,
        Self::Ping,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Cancel => "cancel",
            Self::Inspect => "inspect",
            Self::Break => "break",
            Self::Describe => "describe",
            Self::Remember => "remember",
            Self::Ping => "ping",
        }
    }
}

impl Reply {
    const ALL: [Self; 3] = [Self::Ok, Self::Error, Self::Unanswered];

    fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Unanswered => "unanswered",
        }
    }
}

impl<T, E> From<&Result<T, E>> for Reply {
    fn from(answer: &Result<T, E>) -> Self {
        if answer.is_ok() { Self::Ok } else { Self::Error }
    }
}

impl<T, E> From<&Option<Result<T, E>>> for Reply {
    fn from(answer: &Option<Result<T, E>>) -> Self {
        answer.as_ref().map_or(Self::Unanswered, Self::from)
    }
}

const REASONS: [LossReason; 7] = [
    LossReason::Expired,
    LossReason::Deleted,
    LossReason::Taken,
    LossReason::SessionClosed,
    LossReason::ClientClosed,
    LossReason::ConnectionLost,
    LossReason::Broken,
];

fn reason_label(reason: LossReason) -> &'static str {
    match reason {
        LossReason::Expired => "expired",
        LossReason::Deleted => "deleted",
        LossReason::Taken => "taken",
        LossReason::SessionClosed => "session_closed",
        LossReason::ClientClosed => "client_closed",
        LossReason::ConnectionLost => "connection_lost",
        LossReason::Broken => "broken",
    }
}

const ACQUIRE_WAIT: &str = "distlock_acquire_wait_seconds";
const HOLD: &str = "distlock_hold_seconds";
const HOLDS: &str = "distlock_holds";
const WAITERS: &str = "distlock_waiters";
const LOST: &str = "distlock_lost_total";
const RENEWAL: &str = "distlock_renewal_seconds";
const HEADROOM: &str = "distlock_lease_remaining_min_seconds";
const REQUESTS: &str = "distlock_backend_requests_total";

/// What the metrics of a lock are about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) mode: Mode,
}

/// How locks are held. The numbers of permits are no labels, because they can be many.
const MODES: [&str; 3] = ["exclusive", "shared", "permits"];

fn index_of(mode: Mode) -> usize {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => 1,
        Mode::Permits { .. } => 2,
    }
}

/// The keys of all series of a client, without the names of locks. They are made once, because each needs memory.
struct Series {
    waits: [[Key; 5]; 3],
    hold: [Key; 3],
    holds: [Key; 3],
    waiters: [Key; 3],
    lost: [[Key; 7]; 3],
    renewal: Key,
    requests: [[Key; 3]; 9],
}

impl Series {
    fn new(backend: &'static str) -> Self {
        let backend = ("backend", backend);
        let by_mode = |name| MODES.map(|mode| key(name, &[backend, ("mode", mode)]));
        Self {
            waits: MODES.map(|mode| {
                let of = |outcome: Outcome| ("outcome", outcome.label());
                Outcome::ALL.map(|outcome| key(ACQUIRE_WAIT, &[backend, ("mode", mode), of(outcome)]))
            }),
            hold: by_mode(HOLD),
            holds: by_mode(HOLDS),
            waiters: by_mode(WAITERS),
            lost: MODES.map(|mode| {
                let of = |reason| ("reason", reason_label(reason));
                REASONS.map(|reason| key(LOST, &[backend, ("mode", mode), of(reason)]))
            }),
            renewal: key(RENEWAL, &[backend]),
            requests: Request::ALL.map(|request| {
                let of = |reply: Reply| ("result", reply.label());
                Reply::ALL.map(|reply| key(REQUESTS, &[backend, ("op", request.label()), of(reply)]))
            }),
        }
    }

    /// Makes the series of locks visible with their first values.
    fn show_those_of_locks(&self) {
        for key in self.waits.iter().flatten().chain(&self.hold) {
            record::histogram(key, None);
        }
        for key in self.holds.iter().chain(&self.waiters) {
            record::gauge_by(key, 0.0);
        }
        for key in self.lost.iter().flatten() {
            record::counter(key, 0);
        }
    }
}

impl Metrics {
    /// Describes the metrics of a client, and makes each visible with its first value.
    pub(crate) fn new(backend: &'static str, lock_label: LockLabel) -> Self {
        let series = Series::new(backend);
        record::describe();
        if lock_label == LockLabel::Absent {
            series.show_those_of_locks();
        }
        record::histogram(&series.renewal, None);
        for key in series.requests.iter().flatten() {
            record::counter(key, 0);
        }
        Headroom::publish(backend);
        Self { backend, lock_label, series: Arc::new(series) }
    }

    /// Returns the key for this lock.
    fn of_lock<'a>(&self, key: &'a Key, subject: Subject<'_>) -> Cow<'a, Key> {
        match self.lock_label {
            LockLabel::Absent => Cow::Borrowed(key),
            LockLabel::Name => Cow::Owned(record::with_lock(key, subject.name.as_str())),
        }
    }

    /// Counts a caller that waits, until the result is dropped.
    pub(crate) fn waits(&self, subject: Subject<'_>) -> Waiting {
        let counted = record::IS_ON.then(|| (self.clone(), subject.name.clone(), subject.mode));
        let waiting = Waiting { counted };
        waiting.change_by(1.0);
        waiting
    }

    pub(crate) fn waited(&self, subject: Subject<'_>, outcome: Outcome, waited: impl FnOnce() -> Duration) {
        if record::IS_ON {
            let key = &self.series.waits[index_of(subject.mode)][outcome as usize];
            record::histogram(&self.of_lock(key, subject), Some(waited()));
        }
    }

    /// The owner has received a hold.
    pub(crate) fn acquired(&self, subject: Subject<'_>) {
        let key = &self.series.holds[index_of(subject.mode)];
        record::gauge_by(&self.of_lock(key, subject), 1.0);
    }

    /// A hold that its owner had received has ended.
    pub(crate) fn ended(
        &self,
        subject: Subject<'_>,
        held: impl FnOnce() -> Duration,
        loss: Option<LossReason>,
    ) {
        if !record::IS_ON {
            return;
        }
        let mode = index_of(subject.mode);
        record::gauge_by(&self.of_lock(&self.series.holds[mode], subject), -1.0);
        record::histogram(&self.of_lock(&self.series.hold[mode], subject), Some(held()));
        let reasons = REASONS.iter().zip(&self.series.lost[mode]);
        for (_, key) in reasons.filter(|(reason, _)| loss == Some(**reason)) {
            record::counter(&self.of_lock(key, subject), 1);
        }
    }

    pub(crate) fn request(&self, request: Request, reply: impl Into<Reply>) {
        record::counter(&self.series.requests[request as usize][reply.into() as usize], 1);
    }

    /// A renewal was answered, or given up.
    pub(crate) fn renewed_in(&self, took: Duration) {
        record::histogram(&self.series.renewal, Some(took));
    }

    /// Creates the headroom of a new group.
    pub(crate) fn headroom(&self) -> Headroom {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Headroom { backend: self.backend, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Metrics").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// A caller that waits for a lock.
pub(crate) struct Waiting {
    /// Present when there is something to record.
    counted: Option<(Metrics, LockName, Mode)>,
}

impl Waiting {
    fn change_by(&self, difference: f64) {
        if let Some((metrics, name, mode)) = &self.counted {
            let key = &metrics.series.waiters[index_of(*mode)];
            record::gauge_by(&metrics.of_lock(key, Subject { name, mode: *mode }), difference);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.change_by(-1.0);
    }
}

/// How much of the leases of one group was left when they were last renewed, or could last not be renewed.
pub(crate) struct Headroom {
    backend: &'static str,
    number: u64,
}

/// The headroom of each group of this process, in seconds, by backend and group.
static LEFT: Mutex<BTreeMap<(&'static str, u64), f64>> = Mutex::new(BTreeMap::new());

impl Headroom {
    pub(crate) fn was(&self, left: impl FnOnce() -> Option<Duration>) {
        if record::IS_ON
            && let Some(left) = left()
        {
            LEFT.lock().insert((self.backend, self.number), left.as_secs_f64());
            Self::publish(self.backend);
        }
    }

    /// Returns the least headroom of all groups; infinite when there is no lease.
    fn least(backend: &'static str) -> f64 {
        let left = LEFT.lock();
        let of_backend = left.range((backend, 0)..=(backend, u64::MAX));
        of_backend.fold(f64::INFINITY, |least, (_, left)| least.min(*left))
    }

    fn publish(backend: &'static str) {
        let mut published = None;
        // Another thread may publish an older value at the same time: the last one looks again.
        while record::IS_ON && published != Some(Self::least(backend)) {
            let least = Self::least(backend);
            record::gauge(&key(HEADROOM, &[("backend", backend)]), least);
            published = Some(least);
        }
    }
}

impl Drop for Headroom {
    fn drop(&mut self) {
        if record::IS_ON {
            LEFT.lock().remove(&(self.backend, self.number));
            Self::publish(self.backend);
        }
    }
}

/// The way to the recorder.
#[cfg(feature = "metrics")]
mod record {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    pub(super) use metrics::Key;
    use metrics::{KeyName, Label, Level, Metadata, Recorder, SharedString, Unit};

    use super::{ACQUIRE_WAIT, HEADROOM, HOLD, HOLDS, LOST, RENEWAL, REQUESTS, WAITERS};

    pub(super) const IS_ON: bool = true;

    static METADATA: Metadata<'static> = Metadata::new("distlock", Level::INFO, Some("distlock"));

    fn recorded(record: impl FnOnce(&dyn Recorder)) {
        if catch_unwind(AssertUnwindSafe(|| metrics::with_recorder(record))).is_err() {
            tracing::error!(target: "distlock", "a recorder of metrics panicked");
        }
    }

    pub(super) fn key(name: &'static str, labels: &[(&'static str, &'static str)]) -> Key {
        Key::from_parts(name, labels.iter().map(Label::from).collect::<Vec<_>>())
    }

    pub(super) fn with_lock(key: &Key, name: &str) -> Key {
        key.with_extra_labels(vec![Label::new("lock", name.to_owned())])
    }

    pub(super) fn counter(key: &Key, count: u64) {
        recorded(|recorder| recorder.register_counter(key, &METADATA).increment(count));
    }

    pub(super) fn gauge(key: &Key, value: f64) {
        recorded(|recorder| recorder.register_gauge(key, &METADATA).set(value));
    }

    pub(super) fn gauge_by(key: &Key, difference: f64) {
        recorded(|recorder| recorder.register_gauge(key, &METADATA).increment(difference));
    }

    /// Records a value, or only makes the histogram known.
    pub(super) fn histogram(key: &Key, value: Option<Duration>) {
        recorded(|recorder| {
            let histogram = recorder.register_histogram(key, &METADATA);
            if let Some(value) = value {
                histogram.record(value.as_secs_f64());
            }
        });
    }

    pub(super) fn describe() {
        recorded(|recorder| {
            let histogram = |name, text| {
                recorder.describe_histogram(
                    KeyName::from_const_str(name),
                    Some(Unit::Seconds),
                    SharedString::const_str(text),
                );
            };
            histogram(ACQUIRE_WAIT, "How long callers waited for a lock, by outcome");
            histogram(HOLD, "How long locks were held");
            histogram(RENEWAL, "How long a renewal of leases took");
            let gauge = |name, unit, text| {
                recorder.describe_gauge(
                    KeyName::from_const_str(name),
                    Some(unit),
                    SharedString::const_str(text),
                );
            };
            gauge(HOLDS, Unit::Count, "Locks that are held");
            gauge(WAITERS, Unit::Count, "Callers that wait for a lock");
            gauge(
                HEADROOM,
                Unit::Seconds,
                "What was left of the lease that was nearest to its end when it was last renewed, or could not be",
            );
            let counter = |name, text| {
                recorder.describe_counter(
                    KeyName::from_const_str(name),
                    Some(Unit::Count),
                    SharedString::const_str(text),
                );
            };
            counter(LOST, "Held locks that were lost, by reason");
            counter(REQUESTS, "Requests to the backend, by operation and result");
        });
    }
}

#[cfg(not(feature = "metrics"))]
mod record {
    use std::time::Duration;

    pub(super) const IS_ON: bool = false;

    #[derive(Clone)]
    pub(super) struct Key;

    pub(super) fn key(_: &'static str, _: &[(&'static str, &'static str)]) -> Key {
        Key
    }

    pub(super) fn with_lock(_: &Key, _: &str) -> Key {
        Key
    }

    pub(super) fn counter(_: &Key, _: u64) {}

    pub(super) fn gauge(_: &Key, _: f64) {}

    pub(super) fn gauge_by(_: &Key, _: f64) {}

    pub(super) fn histogram(_: &Key, _: Option<Duration>) {}

    pub(super) fn describe() {}
}
