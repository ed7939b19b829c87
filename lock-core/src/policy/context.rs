//! What all locks of one client share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::policy::cleanup::Cleanup;
use crate::policy::remote::Remote;
use crate::policy::renewal::Renewer;
use crate::runtime::clock::Clock;
use crate::runtime::engine::Engine;
use crate::runtime::metrics::Metrics;
use crate::spi::{AnyBackend, AttemptId, HoldOptions};

pub(crate) struct ClientContext {
    pub(crate) remote: Arc<Remote>,
    /// What locks without options of their own ask for.
    pub(crate) options: Arc<HoldOptions>,
    pub(crate) renewer: Renewer,
    pub(crate) cleanup: Cleanup,
    pub(crate) attempts: AttemptIds,
}

impl ClientContext {
    pub(crate) fn backend(&self) -> &dyn AnyBackend {
        &*self.remote.backend
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.remote.engine
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.remote.clock
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.remote.metrics
    }

    pub(crate) fn server(&self) -> &Arc<str> {
        &self.remote.server
    }
}

/// The ids of a client's attempts: they count from a random start, so that no other client has the same ids.
pub(crate) struct AttemptIds {
    first: u128,
    count: AtomicU64,
}

impl AttemptIds {
    pub(crate) fn beginning_at(first: u128) -> Self {
        Self { first, count: AtomicU64::new(0) }
    }

    pub(crate) fn next(&self) -> AttemptId {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        AttemptId::new(self.first.wrapping_add(u128::from(number)))
    }
}
