//! The etcd backend of distlock: keys of a lease in the order of their creation, one round trip for a free lock, and a queue shared
//! with `etcdctl`.
//!
//! [`connect`] creates a [`LockClient`](lock_core::LockClient) from a URL (`etcd:`, `etcds:`), and [`EtcdOptions`] does so without a
//! URL. For guarantees and their limits, options, permissions and tuning see `docs/backends/etcd.md`.
//!
//! # How it holds the lock
//! The form is that of etcd's own locks (`etcdctl lock`, Go's `concurrency.Mutex`): each attempt creates **a key with the client's
//! lease** under the name of the lock, and the one that was created first holds it. The revision of its creation is the token.
//!
//! * *One round trip.* The transaction that creates the key also reads the line. If nothing is in the way, the lock is ours.
//! * *No request at the hand-off.* A waiter knows the line and watches it. No key can come before an existing one, so the line before it
//!   only becomes shorter. In a long line a waiter watches the nearest key in its way, and reads again when that goes.
//! * *One lease for each client*, and one keep-alive for all its keys. A key belongs to one attempt: `<lease>-<attempt>`.
//! * *A tombstone* for an attempt that was given up while it was unknown whether its request would still arrive: one transaction
//!   deletes the key and writes the tombstone, and a key is only created where there is none.
//! * *The mode is in the value*; a value that is not ours is exclusive. A writer that goes on reading replaces the value, and keeps its
//!   place and its token.
//! * *A connection* is with one server, and replaced by one with the next. The lease goes on there.
//!
//! # Where to find it
//!
//! | question | place |
//! |---|---|
//! | where does a lost connection become a loss? | `keep` in `link.rs` tells the core that the holds are suspect, and lost if the lease is gone; the core ends each at its deadline, unless a keep-alive has renewed it on a new connection |
//! | from when on does a keep-alive count? | `session.rs` has the argument, `renew` in `connection.rs` the requests |
//! | where is a token minted? | at the server: the revision that `create` in `claim.rs` has from the answer |
//! | what does `break` send? | `breaking.rs`; in which order, `lock-entries` says in its file of that name |
//! | who gets the lock next? | each waiter sees it by itself: `attempt.rs`, with the line of `line.rs` and the order of `lock-entries` |
//! | what becomes of a request without an answer? | `claim.rs`: the tombstone |
//!
//! # How a holder learns of a loss
//! The core ends a hold that is not renewed before the servers can give the lock away: its anchor is the sending of the last keep-alive
//! that the leader has certainly answered (`session.rs` has the argument). The key of a hold is watched: a deletion is a
//! loss with [`Deleted`](lock_core::LossReason::Deleted) at once, the mark of `break_holder` one with
//! [`Broken`](lock_core::LossReason::Broken). The end of the lease is [`SessionClosed`](lock_core::LossReason::SessionClosed), the silence of
//! the servers [`Expired`](lock_core::LossReason::Expired).
//!
//! # Problems of other implementations, and what prevents them here
//!
//! | problem | known as | what prevents it here |
//! |---|---|---|
//! | the answer to an acquisition is lost: an unknown key blocks all clients | – | the key follows from the attempt, and is removed for certain |
//! | a late acquisition arrives after its undoing; a late release deletes a newer hold | etcd#22082 | the tombstone; the key of one attempt, with its revision |
//! | a second attempt under the same lease enters silently | `concurrency.Mutex` | a key for each attempt |
//! | a waiter is granted the lock although its lease has ended | jepsen 3.4.3 | the anchor of the lease, and its own key in what it watches |
//! | a waiter whose lease has ended waits for ever | etcd#22387 | its own key in what it watches; the client's keep-alives |
//! | a keep-alive that was answered long ago counts as fresh | etcd#21638 | each is a stream of its own, with one answer, and counts from its sending |
//! | a leader that was deposed while it stood still answers keep-alives | – | each is followed by a read, and counts if both have the same term |
//! | such a leader revokes leases that have ended in its table alone | etcd#15247, and still 3.5.30 | nothing: holders learn of it at once, as of a key that is deleted by hand |
//! | a watch misses what was compacted | etcd#9715 | the line is read again, and watched from there |
//! | a server without a majority goes on answering | – | each request demands a leader |
//! | the lock `a` waits for `a/b` | – | no name contains a slash |
//!
//! # What happens at each failure
//! The tests of each are in `tests/faults`; `cargo test -p lock-etcd --test faults -- --list` names them.
//!
//! * *The outcome of a request is unknown.* The same attempt asks again, and finds its key; or the key is deleted with a tombstone.
//! * *A future is dropped.* The key of its attempt is removed in the same way.
//! * *Contact is lost, a server is silent or has no leader.* The next server is tried. A hold is suspect, and restored if the lease goes on;
//!   otherwise `Expired`. A wait that ends meanwhile is an error.
//! * *The lease is gone.* Its holds are `SessionClosed`, or `Deleted` if the watch came first; a wait begins anew at the end of the line.
//! * *A holder or a waiter dies.* Its keys go with its lease. *It stands still*: it renews its lease before it relies on a grant.
//! * *A leader is lost, a single server restarts.* Holds and places are kept, and each lease lasts anew.
//! * *The history is compacted.* Watches go on, or the line is read again.
//! * *A holder is broken.* It keeps the lock until it has left, at most for its abort margin; one that does not run, a second longer.
//!
//! # Invariants
//! * **Nothing is sent without contact.** The claim of an attempt exists before its first request.
//! * **No key moves to another lease**, and no key is created twice.
//! * **What a waiter relies on is what it has read since it watches and every event after that**; where one may be missing, it reads
//!   again.
//! * **A value is only replaced if it is still the one that was read**: the mark of a break stays.
//!
//! # Why it is built this way
//! * *Not a lease for each hold*: asking for one and ending it are two more commits of the cluster's log for each cycle, which on a disk is
//!   six times as long.
//! * *Not `<name>/<lease>` as the key*, as etcd's own clients have it: one client may have several readers, and a writer that waits for them.
//!   Others look only at the part before the last slash, and at the order.
//! * *No generated code*: the messages are written by hand, so that a build needs no `protoc`.
//! * *No watch of the predecessor alone*: that costs a request at each hand-off, because the one before may have given up.
#![forbid(unsafe_code)]

mod attempt;
mod backend;
mod breaking;
mod claim;
mod connection;
mod failure;
mod inspection;
mod line;
mod link;
mod messages;
mod once;
mod options;
mod session;
mod version;
mod watches;

pub use options::{DRIVER, EtcdOptions, connect};
