//! What users call: clients, locks, guards, holds, listeners.

mod body;
pub(crate) mod builder;
pub(crate) mod client;
pub(crate) mod closed;
#[cfg(test)]
mod costs;
mod dispatcher;
pub(crate) mod election;
mod event_queue;
pub(crate) mod events;
#[cfg(test)]
mod fake;
pub(crate) mod guard;
pub(crate) mod guard_origin;
mod handle;
pub(crate) mod hold;
pub(crate) mod listener;
mod local_handoff;
pub(crate) mod lock;
mod mailbox;
pub(crate) mod once;
pub(crate) mod options;
pub(crate) mod publisher;
pub(crate) mod reentrant;
mod registry;
mod remember;
mod scope;
mod self_wait;
pub(crate) mod several;
pub(crate) mod sharing;
