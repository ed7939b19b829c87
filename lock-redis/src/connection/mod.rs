//! The one connection of a client, or one for each node of a cluster: how it is opened, watched and replaced, and what is sent on it.
//!
//! [`contact`] says what becomes of the holds when it is lost, [`opening`] what a connection has to be before the client uses it.

mod address;
mod contact;
mod earlier;
mod link;
mod nodes;
mod opening;
mod reign;
mod replicas;
mod server;
mod under_way;
mod witnesses;

pub(crate) use contact::Contact;
pub(crate) use link::Link;
pub(crate) use nodes::Nodes;
pub(crate) use reign::Reign;
