//! The logic that all backends share: the local queue, the attempt, renewal, the clean-up, the end of a hold.

pub(crate) mod acquire;
mod attempts;
pub(crate) mod cleanup;
mod client_end;
pub(crate) mod contact;
pub(crate) mod context;
mod downgrade;
pub(crate) mod entry;
pub(crate) mod groups;
pub(crate) mod hold;
pub(crate) mod local;
mod log;
mod lost_unseen;
pub(crate) mod metrics;
mod release;
pub(crate) mod remote;
pub(crate) mod renewal;
pub(crate) mod shared_entries;
