//! The ZooKeeper backend of distlock: ephemeral sequential nodes, one round trip for a free lock, and a queue shared with Curator.
//!
//! [`connect`] creates a [`LockClient`](lock_core::LockClient) from a URL (`zookeeper:`), and [`ZooKeeperOptions`] does so without
//! a URL. For guarantees and their limits, options, permissions and tuning see `docs/backends/zookeeper.md`.
//!
//! # How it holds the lock
//! It follows ZooKeeper's recipe for locks: a client that wants the lock creates an **ephemeral sequential node** in the lock's
//! directory. The node with the lowest number holds the lock, and each other client watches one node before its own. The nodes are
//! named like those of Apache Curator's `InterProcessMutex`, so both programs share one queue. It differs from the recipe in these
//! points:
//!
//! * *One round trip.* The transaction that creates the node also writes to the directory, and the answer to that write says how
//!   many children the directory has. If there is one, the lock is ours, and the transaction's id (`czxid` of the node) is the
//!   token.
//! * *One listing.* No node can come before an existing one, so the predecessors in one listing are all there will ever be. The
//!   client checks them again, but does not list the directory again.
//! * *No request at the hand-off.* The client first watches the node before its nearest predecessor. When that node goes, it
//!   checks the others, while the nearest predecessor holds the lock. When the nearest goes, the lock is ours.
//! * *A protection id for each attempt in each session.* The protection id is part of the node's name, and the client records it before it sends the
//!   first request. Whatever becomes of that request, the client finds the node by its protection id and adopts it, or repeats its removal
//!   until it is certain. It takes no node of another session.
//! * *A heartbeat that the leader commits*: a transaction that only checks, for all holds of a session together.
//! * *A writer that goes on reading keeps its nodes*, and with them its place and its token. The value of the first one says that it reads
//!   now; a write that needs the version that was read says so, and is repeated until its outcome is known. Our readers read that value.
//!   Curator's see names alone: its readers and its mutex wait for such a node as for a writer's, and inspection shows these readers as
//!   waiters. To writers it makes no difference, so none gets in.
//! * *Sessions.* Another session replaces one that has ended. A hold is never replaced.
//!
//! # Where to find it
//!
//! | question | place |
//! |---|---|
//! | where does a lost connection become a loss? | `sessions.rs` tells the core that the holds of a session are suspect, and lost when it has ended; the core ends each at its deadline, unless a heartbeat has renewed it |
//! | from when on does a heartbeat count? | `session_liveness.rs` |
//! | where is a token minted? | at the server: `token_of` in `node.rs` makes it from the transaction that created the node |
//! | what does `break` send? | `breaking.rs`; in which order, `lock-entries` says in its file of that name |
//! | who gets the lock next? | each waiter sees it by itself: `waiter.rs`, by the order of `queue.rs`; for permits `permits.rs` |
//! | what becomes of a request without an answer? | `node_claim.rs` knows of it, and `orphan.rs` removes what it has left |
//!
//! # How a holder learns of a loss
//! The core ends a hold that is not renewed before the servers can give the lock away. `session_liveness.rs` works out what a heartbeat proves
//! and from when on a hold lasts; it has the formula and its reason. The core does not wait for the client library, which reports
//! the end of a session after 1.4 timeouts: the core's deadline comes before two thirds of one.
//!
//! The client watches the holder's node with `getData`. If another program deletes it, the hold is
//! [`Deleted`](lock_core::LossReason::Deleted) at once; if `break_holder` has marked it a moment before, the hold is
//! [`Broken`](lock_core::LossReason::Broken). The end of a session is a loss with
//! [`SessionClosed`](lock_core::LossReason::SessionClosed), the silence of its servers one with
//! [`Expired`](lock_core::LossReason::Expired).
//!
//! # Problems of other implementations, and what prevents them here
//!
//! | problem | known as | what prevents it here |
//! |---|---|---|
//! | the answer to a creation is lost, or its caller gives up: an unknown node blocks all clients | ZOOKEEPER-1262, CURATOR-45, -62, -79, -205, kazoo#732 | the protection id, and the session's own clean-up, repeated until it is certain |
//! | a server that lags does not show the own node yet, and the client creates a second one | – | a transaction before looking, which the leader orders behind the creation; the lowest node counts, the others are removed |
//! | a client takes a node of a session that is about to end for its own: two holders | CURATOR-498, -604, -696 | the protection id is for one session; before adopting a node, the client compares its owner |
//! | the holder does not notice that its session has ended | CURATOR-206 | the deadline by the holder's own clock |
//! | a follower or a deposed leader continues to answer: two holders | – | only what the leader commits counts, and only together with what the leader has learned of the session before |
//! | an operator deletes the holder's node by hand, unnoticed | CURATOR-171 | the watch over the own node; before a grant the client checks it first |
//! | a failed release drops the local state, and the node stays | CURATOR-486, -678 | the release is repeated; a session that cannot remove a node is ended |
//! | a slow callback blocks the thread of events | CURATOR-495 | listeners run on threads of their own, in the core |
//! | `exists` leaves watches behind on nodes that are gone | CURATOR-107 | `getData` watches only existing nodes |
//! | foreign children stop the queue | CURATOR-43 | only nodes named like a contender count; others with a number are refused |
//! | contenders are ordered by the session's number instead of the sequence: two holders | ZOOKEEPER-2931 | the sequence number alone |
//! | the sequence overflows: doubles, and negative numbers | ZOOKEEPER-4372 | from there on the order of creation |
//! | a session with too many nodes brings the ensemble down when it ends | ZOOKEEPER-4306 | the paths of a session are bounded; further sessions |
//! | the answer to a creation in a transaction is wrong | ZOOKEEPER-4026 | the client reads the answer to the write beside it instead |
//!
//! # What happens at each failure
//! The tests of each are in `tests/faults`; `cargo test -p lock-zookeeper --test faults -- --list` names them. *T* is the session's
//! timeout.
//!
//! * *The outcome of a request is unknown.* The client sends a transaction that changes nothing, which the leader orders after all that the
//!   session has sent, and looks for nodes with the attempt's protection id behind it. It takes one, or removes all and repeats that until
//!   they are certainly gone. What arrives later, over a connection that the session has left, is refused.
//! * *A future is dropped.* The nodes of its attempt are removed in the same way.
//! * *Contact is lost, servers are silent.* A hold is suspect, and restored by a reconnection; otherwise `Expired` after two thirds of *T* at
//!   most. If servers return within the session, the client removes the nodes of lost holds. A wait that ends meanwhile is an error.
//! * *The session ends.* A hold is `SessionClosed`, or `Deleted` if its watch came first; a wait goes on in another session, at the end of
//!   the queue, and never takes a node of the ended one.
//! * *A holder or a waiter dies.* Its nodes stay until its session ends. *It stands still*: it checks its nodes before it relies on a grant,
//!   and a holder learns of its loss when it runs.
//! * *A node or the directory is deleted.* A holder learns of it at once, a waiter begins anew and never holds before its turn.
//! * *A holder is broken.* It keeps the lock until it has left, at most for its abort margin; one that does not run, a second longer.
//! * *A leader or follower is killed, stopped, cut off.* Holds and places are kept; what a deposed leader answers proves nothing.
//! * *A server starts.* 3.8.0 may accept a connection before it can serve one, and then never answers on it. The client library connects
//!   again after 2/5 of *T*. A hold outlasts that, unless the start itself takes long.
//! * *A permission, a quota, a server's capacity is missing.* An error that names it; nothing is held. A node that may not be removed goes
//!   with its session, which the client ends as soon as nothing else is held in it.
//! * *The numbers reach their end.* Nodes are ordered by the transactions that created them.
//!
//! # Invariants
//! * **No hold moves to another session**, and an ended session of the client crate is never used again.
//! * **Nothing is sent without a protection id, and nothing without contact.** The claim of an attempt exists before its first request.
//! * **An outcome is unknown until the request is known to have done nothing.** Only errors that the server certainly answered are harmless.
//! * **The nodes of an attempt come and go together.** One of them gone is the loss of all.
//! * **The watch of the own node is checked before that of others.** If an operator deletes both at once, the next contender holds too.
//!   Where it is not watched, the server had it at most 20 ms before the grant.
//! * **Only what the leader has committed proves that a session lives.** No anchor comes from a read, from `sync`, or from a reply.
//! * **Permits are created first and counted then.**
//!
//! # Why it is built this way
//! * *Not on the lock of the client crate*: dropped just before its connection is reset, it leaves a node behind for as long as the session
//!   lives; it has no token, and lists the children at every wake-up.
//! * *A heartbeat is a transaction.* A follower that is cut off answers pings and reads; a deposed leader answers `sync`, in a trial for more
//!   than ten seconds, for five of which the new leader had given the lock away. A transaction needs a majority and a living session.
//! * *A hold is marked before it is broken*, because a watch says that a node is gone, not why. The mark and the removal need the version
//!   that was read: what the holder has written meanwhile is not lost.
//! * *A waiter asks for all that were before it*, once, when the second before it goes: one may go because its waiter gave up. With 256
//!   waiters that request costs a server about 0.25 ms of 1.3 ms for a section. A release could mark its node first, as only a holder
//!   writes to its node; but Curator's `Revoker` and operators write to those of waiters too, a watch does not show the mark of a node
//!   that went with it, and mark and second look cost about 0.14 ms, which is more than 30 names do.
//! * *Numbered nodes of others are refused.* Skipping them made two holders with ZooKeeper's own `WriteLock`; waiting for them blocks all
//!   behind a node that may stay for ever.
//! * *A session is bounded by the bytes of its paths*: a client that names too many watches never regains contact, and the end of a session
//!   with too many nodes may crash servers.
#![forbid(unsafe_code)]

mod attempt;
mod backend;
mod blocker;
mod breaking;
mod contender;
mod failure;
mod inspection;
#[cfg(test)]
mod model;
mod node;
mod node_check;
mod node_claim;
mod options;
mod orphan;
mod permits;
mod permits_inspection;
mod queue;
mod session;
mod session_liveness;
mod sessions;
mod slots;
mod tls;
mod waiter;

pub use contender::Accepted;
pub use options::{Access, Authentication, DRIVER, TokenSource, ZooKeeperOptions, connect};
