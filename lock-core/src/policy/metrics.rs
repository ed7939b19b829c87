//! What a client counts and measures, through the facade of the crate `metrics`. Without the feature `metrics`, nothing
//! here does anything.
//!
//! A recorder is foreign code, which may block or panic: nothing is recorded under a mutex or on the deadline thread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metrics {
    backend: &'static str,
    lock_label: LockLabel,
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

/// A label and its value.
type Label = (&'static str, &'static str);

/// The labels of a series, in the places that are not empty, and the name of the lock, which alone needs memory.
type Labels<'a> = ([Option<Label>; 3], Option<&'a str>);

/// What the metrics of a lock are about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) mode: Mode,
}

/// How locks are held. The numbers of permits are no labels, because they can be many.
const MODES: [&str; 3] = ["exclusive", "shared", "permits"];

fn mode_label(mode: Mode) -> Label {
    let [exclusive, shared, permits] = MODES;
    let mode = match mode {
        Mode::Exclusive => exclusive,
        Mode::Shared => shared,
        Mode::Permits { .. } => permits,
    };
    ("mode", mode)
}

impl Metrics {
    /// Describes the metrics of a client, and makes each visible with its first value.
    pub(crate) fn new(backend: &'static str, lock_label: LockLabel) -> Self {
        let metrics = Self { backend, lock_label };
        record::describe();
        if lock_label == LockLabel::Absent {
            metrics.show_those_of_locks();
        }
        record::histogram(RENEWAL, &of_backend(backend), None);
        for request in Request::ALL {
            for reply in Reply::ALL {
                metrics.count_request(request, reply, 0);
            }
        }
        Headroom::publish(backend);
        metrics
    }

    fn show_those_of_locks(&self) {
        for mode in MODES {
            let with = |label| ([Some(("backend", self.backend)), Some(("mode", mode)), label], None);
            for outcome in Outcome::ALL {
                record::histogram(ACQUIRE_WAIT, &with(Some(("outcome", outcome.label()))), None);
            }
            record::histogram(HOLD, &with(None), None);
            record::gauge_by(HOLDS, &with(None), 0.0);
            record::gauge_by(WAITERS, &with(None), 0.0);
            for reason in REASONS {
                record::counter(LOST, &with(Some(("reason", reason_label(reason)))), 0);
            }
        }
    }

    /// Returns the labels of a metric of a lock.
    fn of_lock<'a>(&self, subject: Subject<'a>, other: Option<Label>) -> Labels<'a> {
        let lock = (self.lock_label == LockLabel::Name).then(|| subject.name.as_str());
        ([Some(("backend", self.backend)), Some(mode_label(subject.mode)), other], lock)
    }

    /// Counts a caller that waits, until the result is dropped.
    pub(crate) fn waits(self, subject: Subject<'_>) -> Waiting {
        let waiting = Waiting { counted: record::IS_ON.then(|| (self, subject.name.clone(), subject.mode)) };
        waiting.change_by(1.0);
        waiting
    }

    pub(crate) fn waited(&self, subject: Subject<'_>, outcome: Outcome, waited: impl FnOnce() -> Duration) {
        if record::IS_ON {
            let labels = self.of_lock(subject, Some(("outcome", outcome.label())));
            record::histogram(ACQUIRE_WAIT, &labels, Some(waited()));
        }
    }

    /// The owner has received a hold.
    pub(crate) fn acquired(&self, subject: Subject<'_>) {
        record::gauge_by(HOLDS, &self.of_lock(subject, None), 1.0);
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
        let labels = self.of_lock(subject, None);
        record::gauge_by(HOLDS, &labels, -1.0);
        record::histogram(HOLD, &labels, Some(held()));
        if let Some(reason) = loss {
            record::counter(LOST, &self.of_lock(subject, Some(("reason", reason_label(reason)))), 1);
        }
    }

    pub(crate) fn request(&self, request: Request, reply: impl Into<Reply>) {
        self.count_request(request, reply.into(), 1);
    }

    fn count_request(&self, request: Request, reply: Reply, count: u64) {
        let (op, result) = (("op", request.label()), ("result", reply.label()));
        record::counter(REQUESTS, &([Some(("backend", self.backend)), Some(op), Some(result)], None), count);
    }

    /// A renewal was answered, or given up.
    pub(crate) fn renewed_in(&self, took: Duration) {
        record::histogram(RENEWAL, &of_backend(self.backend), Some(took));
    }

    /// Creates the headroom of a new group.
    pub(crate) fn headroom(&self) -> Headroom {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Headroom { backend: self.backend, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }
}

fn of_backend(backend: &'static str) -> Labels<'static> {
    ([Some(("backend", backend)), None, None], None)
}

/// A caller that waits for a lock.
pub(crate) struct Waiting {
    /// Present when there is something to record.
    counted: Option<(Metrics, LockName, Mode)>,
}

impl Waiting {
    fn change_by(&self, difference: f64) {
        if let Some((metrics, name, mode)) = &self.counted {
            let labels = metrics.of_lock(Subject { name, mode: *mode }, None);
            record::gauge_by(WAITERS, &labels, difference);
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
            record::gauge(HEADROOM, &of_backend(backend), least);
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

    use metrics::{Key, KeyName, Level, Metadata, Recorder, SharedString, Unit};

    use super::{ACQUIRE_WAIT, HEADROOM, HOLD, HOLDS, LOST, Labels, RENEWAL, REQUESTS, WAITERS};

    pub(super) const IS_ON: bool = true;

    static METADATA: Metadata<'static> = Metadata::new("distlock", Level::INFO, Some("distlock"));

    fn recorded(record: impl FnOnce(&dyn Recorder)) {
        if catch_unwind(AssertUnwindSafe(|| metrics::with_recorder(record))).is_err() {
            tracing::error!(target: "distlock", "a recorder of metrics panicked");
        }
    }

    fn key(name: &'static str, (fixed, lock): &Labels<'_>) -> Key {
        let mut labels = Vec::with_capacity(fixed.len() + 1);
        labels.extend(fixed.iter().flatten().map(|(name, value)| metrics::Label::new(*name, *value)));
        labels.extend(lock.map(|name| metrics::Label::new("lock", name.to_owned())));
        Key::from_parts(name, labels)
    }

    pub(super) fn counter(name: &'static str, labels: &Labels<'_>, count: u64) {
        recorded(|recorder| recorder.register_counter(&key(name, labels), &METADATA).increment(count));
    }

    pub(super) fn gauge(name: &'static str, labels: &Labels<'_>, value: f64) {
        recorded(|recorder| recorder.register_gauge(&key(name, labels), &METADATA).set(value));
    }

    pub(super) fn gauge_by(name: &'static str, labels: &Labels<'_>, difference: f64) {
        recorded(|recorder| recorder.register_gauge(&key(name, labels), &METADATA).increment(difference));
    }

    /// Records a value, or only makes the histogram known.
    pub(super) fn histogram(name: &'static str, labels: &Labels<'_>, value: Option<Duration>) {
        recorded(|recorder| {
            let histogram = recorder.register_histogram(&key(name, labels), &METADATA);
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

    use super::Labels;

    pub(super) const IS_ON: bool = false;

    pub(super) fn counter(_: &'static str, _: &Labels<'_>, _: u64) {}

    pub(super) fn gauge(_: &'static str, _: &Labels<'_>, _: f64) {}

    pub(super) fn gauge_by(_: &'static str, _: &Labels<'_>, _: f64) {}

    pub(super) fn histogram(_: &'static str, _: &Labels<'_>, _: Option<Duration>) {}

    pub(super) fn describe() {}
}
