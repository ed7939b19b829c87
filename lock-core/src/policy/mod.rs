//! The logic that all backends share: the local lock, attempts, renewal, the clean-up, the end of a hold.

pub(crate) mod acquire;
mod attempts;
pub(crate) mod cleanup;
pub(crate) mod client_end;
pub(crate) mod client_lock;
pub(crate) mod context;
pub(crate) mod groups;
pub(crate) mod hold;
pub(crate) mod local;
mod log;
pub(crate) mod release;
pub(crate) mod renewal;
