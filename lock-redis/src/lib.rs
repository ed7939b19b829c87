//! The Redis backend of distlock: a fair lock with leases, direct hand-off and fencing tokens.
//!
//! [`connect`] makes a [`LockClient`](lock_core::LockClient) from a URL (`redis:`, `rediss:`, `unix:`); [`RedisOptions`] makes
//! one without a URL. `docs/backends/redis.md` describes the promises and their limits, the options, the permissions and
//! tuning.
//!
//! # How it holds the lock
//! The holder is the attempt whose id is in **one string key with a time to live**: the lease. [Scripts](scripts()) on the server
//! make every decision atomically. Every script compares the id before it changes a hold, and can be sent twice.
//!
//! * *Order.* A sorted set keeps the waiters, ordered by the server's time when they arrived. Each waiter keeps its place by
//!   a heartbeat, once per renewal interval, which moves its deadline. **A heartbeat never makes a place.**
//! * *Hand-off.* Every script that writes grants a free lock to the first live waiter, in the same step, and publishes the
//!   grant on the channel of that waiter's connection. A waiter is live if its deadline has not passed and a client is
//!   subscribed to its channel.
//! * *Messages* only save time. The next heartbeat or renewal brings the same information.
//! * *The anchor* of a pushed grant is the moment at which the waiter sent the heartbeat that the message names.
//! * *The fencing token* is max(last + 1, the server's time in microseconds), so it rises even when the server forgets
//!   everything.
//! * *The connection.* A client has one. It replaces a broken connection, and before it uses the new one, the server closes all
//!   earlier ones that it knows: **no request of an old connection is carried out after its cancel**. The number of unanswered
//!   requests is bounded, including requests whose callers have given up. Renewals, and requests that end a hold or a wait,
//!   overtake the requests that wait for their turn.
//!
//! The lease that a script compares and deletes comes from Redis's documentation; the debate on Redlock between Martin Kleppmann
//! and Salvatore Sanfilippo covers its limits. Fencing tokens go back at least to Chubby's sequencers. Nothing here relies on several independent servers.
//!
//! # How a holder learns of a loss
//! The core ends a hold that is not renewed before the server can give the lock away; nothing in this crate decides whether a
//! hold is valid. The next renewal finds a key that is gone or belongs to another client:
//! [`Deleted`](lock_core::LossReason::Deleted), [`Taken`](lock_core::LossReason::Taken),
//! [`Broken`](lock_core::LossReason::Broken). The server also reports a break by a message. A connection counts as broken if
//! the server sends no reply for as long as one may take. Any reply counts as a sign of life; the client sends `PING` only
//! on a quiet connection.
//!
//! # What happens at each failure
//! `docs/backends/redis.md` says for each failure what the holder and the next client see, and names the test that forces it.
#![forbid(unsafe_code)]

mod address;
mod attempt;
mod backend;
mod driver;
mod earlier;
mod failure;
mod groups;
mod keys;
mod line;
mod link;
mod options;
mod push_router;
mod record;
mod renewals;
mod scripts;
mod server;
mod supervisor;
mod turn;

pub use driver::DRIVER;
pub use options::{RedisOptions, connect, lease_of};
pub use scripts::{Script, scripts};
