//! What the author of a backend writes to have the suite run: how to make clients, how to do harm, how to look for what
//! was left behind.

use std::time::Duration;

use async_trait::async_trait;
use lock_core::{ClientBuilder, LockClient, LockError, LockName, LossReason, Operation};

use crate::failure::{Failure, Outcome};

/// Something that the suite wants to do and that not every backend, or not every harness, can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ability {
    /// Clients in processes of their own, which can be killed and stopped: [`Harness::address`], [`Harness::connect`].
    SeparateProcesses,
    /// Cutting all clients off from the server, and ending that: [`Harness::sever`], [`Harness::heal`].
    Outages,
    /// Carrying out a request and losing the reply: [`Harness::lose_reply`].
    LostReplies,
    /// Carrying out a request and keeping the reply back for a while: [`Harness::hold_reply`],
    /// [`Harness::reply_is_held`], [`Harness::let_replies_go`].
    SlowReplies,
    /// Taking a lock away in this manner: [`Harness::take_away`].
    Removal(Removal),
}

impl Ability {
    /// Every ability that there is.
    pub const ALL: [Self; 7] = [
        Self::SeparateProcesses,
        Self::Outages,
        Self::LostReplies,
        Self::SlowReplies,
        Self::Removal(Removal::Deletion),
        Self::Removal(Removal::Expiry),
        Self::Removal(Removal::Theft),
    ];
}

/// How a lock is taken from its holder behind the back of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Removal {
    /// What stands for the lock at the server is deleted; the next in the queue may have it.
    Deletion,
    /// The lease ends, or the session; the next in the queue may have it.
    Expiry,
    /// Somebody else has it, and keeps it until [`Removal::Deletion`] takes it from that somebody.
    Theft,
}

/// How many ways a client has to its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routes {
    /// One connection carries everything.
    One,
    /// There are connections beside each other.
    Several,
}

/// A backend under test. **Each instance is a place of its own**: an empty server, or a folder, a database, a prefix that
/// nobody else uses, because the cases use the same names and run side by side.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// Why the user wants all cases of this backend left out; `None` unless that is so. They show as ignored then, with that
    /// reason, and no place is made.
    fn left_out() -> Option<String>
    where
        Self: Sized,
    {
        None
    }

    /// Makes a new and empty place.
    async fn start() -> Outcome<Self>
    where
        Self: Sized;

    /// Why the harness cannot do this; `None` when it can. The reason is shown with each case that is ignored for it.
    ///
    /// What a backend does by itself (order, tokens, inspection, breaking) is read from its
    /// [`Capabilities`](lock_core::Capabilities) and cannot be declined here.
    fn lacks(&self, ability: Ability) -> Option<&'static str>;

    /// Makes a client of this place, with the settings of `builder`.
    async fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError>;

    /// As [`Harness::client`], with a lease that outlasts every case, if the backend has leases and the harness can choose: for
    /// cases that hold much for long and are not about its end.
    async fn lasting_client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.client(builder).await
    }

    /// What is left at the server by now, one line each: locks, queue entries, sessions, files. A thing that is meant to
    /// stay (a counter) is not left behind.
    async fn leftovers(&self) -> Outcome<Vec<String>>;

    /// How long the server keeps a lock that is not renewed, where it does that.
    fn lease(&self) -> Option<Duration> {
        None
    }

    /// What a holder is told whose lock was broken; `None` when its client cannot know why it lost the lock.
    fn reason_of_a_break(&self) -> Option<LossReason> {
        Some(LossReason::Broken)
    }

    /// How long a case waits for something that has to happen before it calls it missing. Generous: it costs time only
    /// when something is wrong.
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// How often a case does what has to be done often, if `many` times are enough to see it go wrong. Fewer where a waiter
    /// finds out late that it has the lock, so that each time takes long.
    fn rounds(&self, many: u32) -> u32 {
        many
    }

    /// How many ways to the server a client has of which one may be silent while another is not.
    fn routes(&self) -> Routes {
        Routes::One
    }

    /// Whatever another process needs to find this place, for [`Harness::connect`]: a URL, as a rule.
    fn address(&self) -> Option<String> {
        None
    }

    /// Makes a client of the place at `address`, in a process of its own.
    async fn connect(address: &str, builder: ClientBuilder) -> Result<LockClient, LockError>
    where
        Self: Sized,
    {
        let _ = (address, builder);
        Err(LockError::new(lock_core::ErrorKind::Unsupported, Operation::Connect)
            .because("the harness does not connect from other processes"))
    }

    /// Cuts every client off from the server.
    async fn sever(&self) -> Outcome {
        Err(unsupported("sever"))
    }

    /// Ends what [`Harness::sever`] did.
    async fn heal(&self) -> Outcome {
        Err(unsupported("heal"))
    }

    /// Has the next request for `operation` carried out and its reply lost.
    async fn lose_reply(&self, operation: Operation) -> Outcome {
        let _ = operation;
        Err(unsupported("lose_reply"))
    }

    /// Has the next request for `operation` carried out and its reply kept back until [`Harness::let_replies_go`].
    async fn hold_reply(&self, operation: Operation) -> Outcome {
        let _ = operation;
        Err(unsupported("hold_reply"))
    }

    /// Waits until a request has come whose reply is kept back.
    async fn reply_is_held(&self) -> Outcome {
        Err(unsupported("reply_is_held"))
    }

    /// Lets all replies go that are kept back.
    async fn let_replies_go(&self) -> Outcome {
        Err(unsupported("let_replies_go"))
    }

    /// Takes the lock from whoever holds it.
    async fn take_away(&self, name: &LockName, removal: Removal) -> Outcome {
        let _ = (name, removal);
        Err(unsupported("take_away"))
    }

    /// How many wait for the lock at the server. By default it asks `client` for the lock's status; a backend that cannot
    /// show its queue to users has another way here.
    async fn waiting_for(&self, client: &LockClient, name: &LockName) -> Outcome<usize> {
        Ok(client.status(name).await?.waiters.len())
    }
}

fn unsupported(what: &str) -> Failure {
    Failure::new(format!("the harness claims an ability and does not implement `{what}`"))
}
