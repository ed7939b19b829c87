//! The Redis backend of distlock: a fair lock with leases, direct hand-off and fencing tokens.
//!
//! [`connect`] makes a [`LockClient`](lock_core::LockClient) from a URL (`redis:`, `rediss:`, `unix:`, `redis+sentinel:`,
//! `redis+cluster:`); [`RedisOptions`] makes one without a URL. `docs/backends/redis.md` describes the promises and their limits, the options, the permissions and
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
//! * *The connection.* A client has one, or one for each node of a cluster that it uses. It replaces a broken connection, and before it uses the new one, the server closes all
//!   earlier ones that it knows: **no request of an old connection is carried out after its cancel**. The number of unanswered
//!   requests is bounded, including requests whose callers have given up: what begins something waits for its turn. Renewals,
//!   heartbeats, and requests that end a hold or a wait overtake it, and there are no more of them than holds and waits.
//!
//! # Where to find it
//!
//! | question | place |
//! |---|---|
//! | where does a lost connection become a loss? | `connection/contact.rs` tells the core that the holds are suspect; the core ends each at its deadline, unless `renewals.rs` has renewed it on a new connection |
//! | what does a connection need before it is used? | `connection/opening.rs` |
//! | which server is the primary, and since when? | `connection/witnesses.rs`, `scripts/greet.lua` |
//! | which node of a cluster has a lock? | `connection/nodes.rs` |
//! | where is a token minted? | `scripts/parts/token_usual.lua`, and `token.lua` beside it for all other cases |
//! | what does `break` send? | `scripts/break.lua`, from `break_holder` in `backend.rs` |
//! | who gets the lock next? | `scripts/parts/promote.lua`; in the usual case `scripts/release.lua` |
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
//! The tests of each are in `tests/faults`; `cargo test -p lock-redis --test faults -- --list` names them. *H* is the renewal
//! interval, *L* the lease.
//!
//! * *A reply is lost* (unknown outcome). The client repeats the request with the same id, or cancels it, until it is certain.
//! * *A future is dropped.* The client cancels the attempt by its id.
//! * *A holder dies.* The lock is free after at most *L*. *A waiter dies.* The server skips it when it sees that its connection is
//!   closed; if its host fell silent, at its deadline.
//! * *A waiter stands still across its grant.* It checks the grant again before it relies on it.
//! * *A message is lost or late.* The next heartbeat or renewal brings the same information, after at most *H*.
//! * *The connection breaks, or falls silent.* Holds are suspect until a new connection has renewed them; places are kept. As long
//!   as any reply arrives, the connection is good.
//! * *An old request arrives late.* It is not carried out: the server has closed its connection.
//! * *The server stands still.* A hold is lost before its lease ends; a wait that ends meanwhile is an error, not a refusal.
//! * *The server restarts, or a replica takes over.* With its data, holds go on. Without, they are `Deleted` at the next renewal, and
//!   another client may have the lock before that, unless `restart_delay` is set, or the client asks sentinels or
//!   a cluster. A server that has become a replica is left.
//! * *A hash slot moves.* A node that does not have all keys of a lock executes nothing, and says so: the client asks where the slot is,
//!   and sends the request there. Holds go on at the new node.
//! * *A key is deleted, overwritten, broken.* The holder learns of it after at most *H*; nothing that it does touches the new key.
//! * *Scripts are forgotten, memory is short, a script blocks the server, a permission is revoked.* Renewals and releases go on where
//!   the server permits it; other requests are errors.
//!
//! # Behind sentinels and in a cluster: why no two believe
//! The *witnesses* are the sentinels, or the nodes that the URL names. *L* is the longest lease (`max_lease`), *R* two renewal intervals, at
//! most *L*/2, with 4 % for clocks. A *reign* is the time of a server as primary: its run id, its replication id, which changes at each
//! promotion, and the epoch that the witnesses give the failover, which tells a primary that becomes one again before it was demoted. One
//! key for each prefix, in a cluster at each node, notes the reign, the longest *L* + *R* of any client (*M*), and from when the reign
//! grants, for each hash slot (`scripts/greet.lua`). Without a cluster there is one slot.
//! 1. A client asks the witnesses every *R*/4. What it sends counts only if it is sent **and answered** before *t* + *R*, where *t* is the
//!    moment **before** it asked for the last time that a majority of all named this server for the slot in this epoch, which then said
//!    that its reign goes on (`Connection::confirm`). Every anchor is the moment of a sending, so it believes in no hold of this reign
//!    after *t* + *R* + *L* < *t* + *M*.
//! 2. Behind each request for a lock, or a renewal, the client asks for the replication id (`Link::send_in_reign`): what a server grants
//!    that was demoted and promoted again since the connection was opened counts for nothing. So a grant that comes by a message costs a
//!    request, too.
//! 3. A client that comes to a primary asks the witnesses first, then checks the role, and calls `greet`. The first one in a reign
//!    notes it, at *c*. No client takes anything in this reign before *c* + *M* (`Link::grants_at`).
//! 4. Two majorities of the same witnesses share one, whose epoch only rises. It named the old primary after *t*, and the new one, in a
//!    later epoch, before *c*; a server that restarts in one epoch says so itself. So *t* < *c*, and by *c* + *M* each hold of an
//!    earlier reign is over, or has a record in the new one that its holder has renewed there.
//! 5. What the old primary grants counts until *c* + *R*, and the new one has no part in it. So a hold goes on in another reign only if its
//!    record in the one before lasts until *c* + *R* (`Lease::may_go_on`): until then the old primary gives it to no other client. A server that has begun anew in the same epoch grants nothing any more as what it was before.
//! 6. An owner that has released a hold, or whose lease is over, does not renew. So a record that comes back with a stale replica
//!    lets no one believe; it ends with its lease.
//! 7. A note is only written in its own reign, so no stale one lifts the pause. A longer *M* than before pauses as a new reign does,
//!    which gives replicas the time to learn of it.
//!
//! In a cluster:
//! 8. A witness that has heard of a new owner, and not yet of its epoch, names it in an earlier one. The node itself has to say the same
//!    epoch and slots, and its own epoch only rises.
//! 9. A slot that comes to a primary within its reign pauses alone. Whether all keys came with it, or another node was lost and the
//!    slot was given away, nothing at the node tells; and it has another clock than the one that wrote the ends of shared leases.
//! 10. A slot that leaves takes its note with it if it is the last one of the node. That costs a pause, as any lost note does.
//! 11. While a slot moves, a script is executed only where all five keys of the lock are. Usually some do not exist, so neither node
//!    executes any, and to follow `ASK` would be useless: `MOVED`, `ASK`, `TRYAGAIN` and `CLUSTERDOWN` all mean that nothing was executed.
//! 12. A waiter subscribes at the node at which it waits, on the connection on which it asks, so `NUMSUB` counts it. A channel of a shard
//!    would have to be in the slot of each lock, and needs 7.0; the usual ones only cost a message to each node.
//!
//! Presumed: all clients name the same witnesses, each name leads to one witness for ever, which keeps its configuration; a
//! promoted replica is behind by less than *M*, or all clients have the same `max_lease`, as in a cluster they must, where the note of
//! one node says nothing of another's; and an operator moves slots as `redis-cli` does, which raises the new owner's epoch above
//! the old one's. Not presumed: that the old primary stops, or that a client hears
//! of the switch. A primary that was stopped, or deposed by `SENTINEL FAILOVER`, takes writes for ten seconds more (7.0), so
//! following READONLY, MOVED and closed connections alone would not do; a question every *R*/4 makes a subscription to
//! `+switch-master` superfluous.
//!
//! # Durable grants
//! With `durable`, a grant or a release counts when `WAIT` has counted enough replicas (`connection/replicas.rs`): in the same write, or
//! afterwards for all that were answered meanwhile. A grant that too few have fails as one whose reply was lost, so the core repeats or
//! cancels it by its id; until then it keeps the lock from others, and no client believes in it. A release that too few have is not
//! undone: if the record comes back, it lets no client believe, and ends with its lease. A waiter that is served by a hand-off asks
//! and waits for the replicas itself. `WAIT` stops the connection, renewals included, so there is one at a time, and it ends before
//! the connection would count as silent.
//!
//! # Invariants
//! * **No request of an old connection is executed after its cancel.** A link is used only after the server has closed all earlier ones
//!   of the same run of the server.
//! * **No renewal waits for its turn.** Requests that end a hold or a wait do not queue behind those that begin one.
//! * **No script leaves a living waiter at the head of the queue if the holders leave room for it.**
//! * **A holder that shares and whose lease is over is gone**: no renewal and no heartbeat revives it.
//! * **Nothing that is sent to a primary counts if it, and the witnesses, have not confirmed it for two intervals.**
//! * **No anchor is the moment of a reply or a message.** It is that at which the client sent the request that the server answered; a
//!   message names the request by that moment.
//! * **Correctness never depends on a message**, and no script changes a hold without comparing the id.
//! * **No connection is repaired, and none repeats a request.** The core decides what becomes of an unanswered one.
//! * **Nothing blocks on the task that reads the connection.**
#![forbid(unsafe_code)]

mod attempt;
mod backend;
mod connection;
mod failure;
mod groups;
mod keys;
mod messages;
mod options;
mod record;
mod renewals;
mod scripts;

pub use options::{DRIVER, Durability, RedisOptions, SentinelOptions, connect};
pub use scripts::{Script, scripts};
