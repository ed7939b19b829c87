//! What users call: clients, locks, guards, holds, listeners.

pub(crate) mod announcer;
mod body;
pub(crate) mod builder;
pub(crate) mod client;
pub(crate) mod closed;
#[cfg(test)]
mod costs;
pub(crate) mod driver;
pub(crate) mod election;
pub(crate) mod events;
pub(crate) mod granter;
pub(crate) mod guard;
mod handle;
pub(crate) mod hold;
pub(crate) mod hold_control;
mod inbox;
pub(crate) mod listener;
mod local_handoff;
pub(crate) mod lock;
pub(crate) mod memory;
mod memos;
pub(crate) mod once;
pub(crate) mod options;
mod part_watch;
mod queue;
pub(crate) mod reentrant;
mod registry;
mod scope;
mod self_wait;
pub(crate) mod several;
pub(crate) mod sharing;
