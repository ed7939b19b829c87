//! What users call: clients, locks, guards, holds, listeners.

mod body;
pub(crate) mod builder;
pub(crate) mod client;
mod closing;
mod dispatcher;
pub(crate) mod election;
mod event_queue;
pub(crate) mod events;
pub(crate) mod guard;
mod in_use;
mod joint;
mod joint_hold;
pub(crate) mod listener;
mod listing;
mod local_handoff;
pub(crate) mod lock;
mod mailbox;
pub(crate) mod once;
pub(crate) mod options;
pub(crate) mod publisher;
pub(crate) mod reentrant;
mod scope;
mod self_wait;
pub(crate) mod several;
pub(crate) mod sharing;
#[cfg(test)]
mod tests;
pub(crate) mod watching;
