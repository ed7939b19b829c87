//! The trait that a backend author implements to run the suite: how to make clients, how to disturb the server, how to
//! find what was left behind.

use std::time::Duration;

use crate::{Failure, Outcome};
use async_trait::async_trait;
use lock_core::{ClientBuilder, EngineChoice, LockClient, LockError, LockName, LossReason, Operation};

/// Something that the suite needs and that not every backend, or not every harness, can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ability {
    /// Clients in processes of their own, which can be killed and stopped: [`Harness::address`], [`Harness::connect`].
    SeparateProcesses,
    /// Killing processes of clients where the server notices it at once: it keeps neither a lock nor a place for the rest of
    /// a lease.
    SeenDeaths,
    /// Cutting all clients off from the server, and ending that: [`Harness::sever`], [`Harness::heal`].
    Outages,
    /// Silence between the server and some of its clients, whose connections stay open: [`Harness::silence`],
    /// [`Harness::heal`], and [`Harness::bystander`] for clients that it does not affect.
    Silence,
    /// The same for clients that wait, where the server notices it before it is their turn.
    SilentWaiters,
    /// Losing the reply to a request that the server carries out: [`Harness::lose_reply`].
    LostReplies,
    /// Holding back the reply to a request that the server carries out: [`Harness::hold_reply`],
    /// [`Harness::reply_is_held`], [`Harness::let_replies_go`].
    SlowReplies,
    /// Holding back the reply to the check with which a client makes sure of a grant that it has long waited for: that of
    /// [`Operation::Renew`].
    CheckedGrants,
    /// Taking a lock away in this way: [`Harness::take_away`].
    Removal(Removal),
    /// Killing the server and starting it again: [`Harness::change_server`], [`Harness::start_alone`], and
    /// [`Harness::bystander`] for clients that connect directly.
    RestartServer,
    /// Stopping the process of the server for a while: [`Harness::change_server`], [`Harness::start_alone`].
    StopServer,
}

impl Ability {
    /// All abilities.
    pub const ALL: [Self; 13] = [
        Self::SeparateProcesses,
        Self::SeenDeaths,
        Self::Outages,
        Self::Silence,
        Self::SilentWaiters,
        Self::LostReplies,
        Self::SlowReplies,
        Self::CheckedGrants,
        Self::Removal(Removal::Deletion),
        Self::Removal(Removal::Expiry),
        Self::Removal(Removal::Theft),
        Self::RestartServer,
        Self::StopServer,
    ];
}

/// What a case does to the process of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerChange {
    /// It stands still: it keeps its connections, and the system accepts new ones for it.
    Stop,
    /// It continues after [`ServerChange::Stop`].
    Resume,
    /// It is killed, without time to prepare.
    Kill,
    /// It is killed, unless it has ended already, and started again with the data that was on its disk.
    Restart,
}

/// What the server knows after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterRestart {
    /// Who holds which lock, and who waits for it.
    Locks,
    /// Who holds which lock. Who waits for it asks again.
    Holds,
    /// Nothing of locks: the holders have lost theirs.
    Nothing,
}

/// How a lock is taken from its holder without the knowledge of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Removal {
    /// The server's data for the lock is deleted; the next in the queue may have it.
    Deletion,
    /// The lease ends, or the session; the next in the queue may have it.
    Expiry,
    /// A foreign holder has the lock, and keeps it until [`Removal::Deletion`] takes it away.
    Theft,
}

/// What no longer arrives, on connections that stay open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// What the clients send.
    Requests,
    /// What the server sends.
    Replies,
    /// Neither.
    Both,
}

/// What happens to a connection when a request or a reply is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Losing {
    /// The connection ends before it, on both sides.
    Cut,
    /// Half of it arrives, and then the connection is reset.
    ResetHalfway,
    /// It never arrives, and neither does anything after it in the same direction of that connection. Otherwise the
    /// connection stays as it is.
    Silence,
}

impl Losing {
    /// All ways to lose a message.
    pub const ALL: [Self; 3] = [Self::Cut, Self::ResetHalfway, Self::Silence];
}

/// How many connections a client has to its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routes {
    /// One connection carries everything.
    One,
    /// There are several connections side by side.
    Several,
}

/// A backend under test. **Each instance is a place of its own**: an empty server, or a folder, a database or a prefix
/// that nothing else uses, because the cases use the same names and run side by side.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// Returns why the user wants all cases of this backend left out; `None` otherwise. The cases then show as ignored,
    /// with that reason, and no place is created.
    fn left_out() -> Option<String>
    where
        Self: Sized,
    {
        None
    }

    /// Returns the groups of cases that can see how this way to run the backend differs from the one that runs every
    /// case; `None` if this is the one. The default tier runs only these groups. An example is a second source of tokens,
    /// which no case of exclusion can see.
    fn differs_in() -> Option<&'static [&'static str]>
    where
        Self: Sized,
    {
        None
    }

    /// Returns where the clients of the cases have their engines: a second way to run a backend can use the caller's runtime.
    /// With `DISTLOCK_ENGINE=caller` all do.
    fn engine(&self) -> EngineChoice {
        EngineChoice::Own
    }

    /// Creates a new and empty place.
    async fn start() -> Outcome<Self>
    where
        Self: Sized;

    /// Like [`Harness::start`], at a server that no other place uses: for cases that disturb the server itself.
    async fn start_alone() -> Outcome<Self>
    where
        Self: Sized,
    {
        Self::start().await
    }

    /// Returns why the harness lacks this ability; `None` if it has it. The reason is shown with each case that is
    /// ignored because of it.
    ///
    /// What a backend does by itself (order, tokens, inspection, breaking) is read from its
    /// [`Capabilities`](lock_core::Capabilities) and cannot be declined here.
    fn lacks(&self, ability: Ability) -> Option<&'static str>;

    /// Creates a client of this place, with the settings of `builder`. Its clock may stand still, and connecting must not
    /// depend on it.
    async fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError>;

    /// Like [`Harness::client`], with a lease that outlasts every case, if the backend has leases and the harness can
    /// choose. It is for cases that hold many locks for a long time and do not test the end of a lease.
    async fn lasting_client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.client(builder).await
    }

    /// Returns how long the server keeps a lock of [`Harness::lasting_client`] that is not renewed, if the backend has
    /// leases.
    fn lasting_lease(&self) -> Option<Duration> {
        self.lease()
    }

    /// Returns what is left at the server now, one line each: locks, queue entries, sessions, files. Things that are
    /// meant to stay, such as a counter, do not count.
    async fn leftovers(&self) -> Outcome<Vec<String>>;

    /// Returns how long the server keeps a lock that is not renewed, if the backend has leases.
    fn lease(&self) -> Option<Duration> {
        None
    }

    /// Returns the reason that the holder of a broken lock gets; `None` when its client cannot know why it lost the
    /// lock.
    fn reason_of_a_break(&self) -> Option<LossReason> {
        Some(LossReason::Broken)
    }

    /// Returns how long a case waits for something that has to happen before it fails. The value is generous: it costs
    /// time only when something is wrong.
    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// Returns how often a case repeats a step, where `many` times are enough to see it fail. Return less if a waiter
    /// notices a grant late, so that each repetition takes long.
    fn rounds(&self, many: u32) -> u32 {
        many
    }

    /// Returns how many connections a client has to the server, of which one may be silent while another works.
    fn routes(&self) -> Routes {
        Routes::One
    }

    /// Returns what another process needs to find this place with [`Harness::connect`], usually a URL.
    fn address(&self) -> Option<String> {
        None
    }

    /// Returns the address with which [`Harness::connect`] creates a client like those of [`Harness::lasting_client`].
    fn lasting_address(&self) -> Option<String> {
        self.address()
    }

    /// Creates a client of the place at `address`, in a process of its own.
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

    /// Lets nothing more arrive from the clients or from the server, on connections that stay open. New connections are
    /// silent, too.
    async fn silence(&self, silence: Silence) -> Outcome {
        let _ = silence;
        Err(unsupported("silence"))
    }

    /// Creates a client of this place that connects directly: [`Harness::silence`] does not affect it.
    async fn bystander(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        let _ = builder;
        Err(LockError::new(lock_core::ErrorKind::Unsupported, Operation::Connect)
            .because("the harness has no bystanders"))
    }

    /// Ends what [`Harness::sever`] and [`Harness::silence`] did.
    async fn heal(&self) -> Outcome {
        Err(unsupported("heal"))
    }

    /// Lets the server carry out the next request for `operation`, and loses the reply in this way. Without a connection,
    /// all ways are one.
    async fn lose_reply(&self, operation: Operation, losing: Losing) -> Outcome {
        let _ = (operation, losing);
        Err(unsupported("lose_reply"))
    }

    /// Lets the server carry out the next request for `operation`, and holds the reply back until
    /// [`Harness::let_replies_go`].
    async fn hold_reply(&self, operation: Operation) -> Outcome {
        let _ = operation;
        Err(unsupported("hold_reply"))
    }

    /// Waits until there is a reply that is held back.
    async fn reply_is_held(&self) -> Outcome {
        Err(unsupported("reply_is_held"))
    }

    /// Releases all replies that are held back.
    async fn let_replies_go(&self) -> Outcome {
        Err(unsupported("let_replies_go"))
    }

    /// Does this to the process of the server; a server that is started again or resumed need not answer yet.
    async fn change_server(&self, change: ServerChange) -> Outcome {
        let _ = change;
        Err(unsupported("change_server"))
    }

    /// Returns what the server knows after a restart.
    fn after_a_restart(&self) -> AfterRestart {
        AfterRestart::Nothing
    }

    /// Takes the lock from its holder.
    async fn take_away(&self, name: &LockName, removal: Removal) -> Outcome {
        let _ = (name, removal);
        Err(unsupported("take_away"))
    }

    /// Returns how many waiters the lock has at the server. By default it asks `client` for the lock's status; a
    /// backend that cannot show its queue to users has to find out in another way here.
    async fn waiting_for(&self, client: &LockClient, name: &LockName) -> Outcome<usize> {
        Ok(client.status(name).await?.waiters.len())
    }
}

fn unsupported(what: &str) -> Failure {
    Failure::new(format!("the harness claims an ability and does not implement `{what}`"))
}
