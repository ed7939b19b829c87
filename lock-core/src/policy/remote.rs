//! Access to the server: what work at the server needs, and nothing else of the client.

use std::sync::Arc;

use crate::runtime::clock::Clock;
use crate::runtime::engine::Engine;
use crate::runtime::metrics::Metrics;
use crate::spi::AnyBackend;

pub(crate) struct Remote {
    pub(crate) backend: Box<dyn AnyBackend>,
    pub(crate) engine: Engine,
    pub(crate) clock: Clock,
    /// The address of the server, for errors and the log.
    pub(crate) server: Arc<str>,
    pub(crate) metrics: Metrics,
}
