//! What an attempt asks for, and what a refusal says.

use std::num::NonZeroU32;
use std::sync::Arc;

use lock_core::{AttemptId, Mode};

use crate::parts::Parts;
use crate::statement::Holder;

/// A lock's name at the server.
pub(crate) type Name = Arc<str>;

/// An attempt's request for a lock.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) parts: Arc<Parts>,
    pub(crate) id: AttemptId,
    pub(crate) mode: Mode,
    /// The record of the holder, if the table of tokens is used.
    pub(crate) holder: Option<Arc<Holder>>,
    /// How many tokens the grant reserves, its own included.
    pub(crate) sections: NonZeroU32,
}

/// What a refusal says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refusal {
    /// The connection that has the lock, if the statement asked for it.
    pub(crate) connection: Option<u64>,
    /// What the table says of the last holder.
    pub(crate) record: Option<String>,
    /// The semaphore has holders that use it with this many permits.
    pub(crate) other_permits: Option<u32>,
}
