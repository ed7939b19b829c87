//! What all locks of one client share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::policy::client_end::ClientEnd;
use crate::policy::groups::HeldGroups;
use crate::policy::hold::EventSink;
use crate::policy::local::Number;
use crate::runtime::{Clock, Engine, Metrics, Moment, Outstanding};
use crate::spi::{AnyBackend, AttemptId, HoldOptions};

pub(crate) struct ClientContext {
    pub(crate) backend: Box<dyn AnyBackend>,
    pub(crate) engine: Engine,
    pub(crate) clock: Clock,
    /// The address of the server, for errors and the log.
    pub(crate) server: Arc<str>,
    pub(crate) metrics: Metrics,
    /// What locks without options of their own ask for.
    pub(crate) options: Arc<HoldOptions>,
    pub(crate) held: Arc<HeldGroups>,
    /// The releases and cancels that the server has not confirmed.
    pub(crate) unconfirmed: Arc<Outstanding>,
    pub(crate) end: ClientEnd,
    /// Receives the events of all holds.
    pub(crate) events: Arc<dyn EventSink>,
    /// When every holder whose hold the core has ended must have stopped, in nanoseconds; zero if there was no such hold.
    pub(crate) stopped_by: AtomicU64,
    /// The id of the first attempt, which is random, and the number of the next one.
    pub(crate) attempts: (u128, AtomicU64),
}

impl ClientContext {
    /// Returns the number of a new attempt, which no other one of this client has.
    pub(super) fn new_number(&self) -> Number {
        self.attempts.1.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the id of an attempt, which no other client has: they count from random starts.
    pub(super) fn id_of(&self, number: Number) -> AttemptId {
        AttemptId::new(self.attempts.0.wrapping_add(number.into()))
    }

    /// Notes when a holder that learns of its loss now has stopped.
    pub(super) fn stops_by(&self, moment: Moment) {
        self.stopped_by.fetch_max(moment.as_nanoseconds(), Ordering::SeqCst);
    }

    /// Returns when every holder whose hold the core has ended has stopped.
    pub(crate) fn stopped_by(&self) -> Moment {
        Moment::from_nanoseconds(self.stopped_by.load(Ordering::SeqCst))
    }
}
