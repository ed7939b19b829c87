//! The way to the server: what each piece of work there needs, and nothing of the client besides.

use std::sync::Arc;

use crate::runtime::clock::Clock;
use crate::runtime::engine::Engine;
use crate::spi::AnyBackend;

pub(crate) struct Remote {
    pub(crate) backend: Box<dyn AnyBackend>,
    pub(crate) engine: Engine,
    pub(crate) clock: Clock,
    /// Where the server is, for errors and the log.
    pub(crate) server: Arc<str>,
}
