//! The one connection of a client: how it is opened, watched and replaced, and what is sent on it.
//!
//! [`contact`] says what becomes of the holds when it is lost, [`opening`] what a connection has to be before the client uses it.

mod address;
mod contact;
mod earlier;
mod link;
mod opening;
mod sentinels;
mod server;
mod under_way;

pub(crate) use contact::{Connection, Contact};
pub(crate) use link::{Link, Turn};
