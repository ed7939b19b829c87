//! The lease of a client, to which all its keys are attached, and how long it is known to live.
//!
//! # Why a renewal counts
//! Only the leader counts how long leases last, each leader by itself, and a keep-alive is no commit of the log. One that was deposed
//! while it stood still answers for up to a second more, from a table that counts for nothing: the next leader has extended all leases
//! when it was elected, and ends them by its own count. So after the answer the client reads, and compares the terms in both headers.
//!
//! 1. The term in a header is that of the last entry of the log that the member has applied. That of a keep-alive is taken before the
//!    lease is renewed; that of a read after a majority has confirmed the leader, which has committed an entry of its own term before.
//! 2. Let `T` be the term of that leader. A majority followed it when the read was sent or later, so no later leader was elected before
//!    the answer to the keep-alive. And the term of the read is not below `T`.
//! 3. If the term of the keep-alive is the same, its member had applied an entry of `T`; a later leader, there was none. A member takes
//!    note of a leader, and of its own end as one, before it applies an entry of the next one. So the lease was renewed at the leader of
//!    `T`: by the member itself, or by the one to which it forwarded the keep-alive after it had read its term.
//! 4. That leader keeps the lease for its length from then on, and one that follows it from its election on, which is later.
//!
//! So the lease lasts for its length from the sending of a keep-alive on. With other terms the client asks again. The moment of an answer
//! proves nothing: a server that stood still answers late. A lease that is new is an entry of the log, which any leader counts from its
//! commit on, or later.
//!
//! Two gaps are left, in which the term of a read may be below `T`. A member takes no term from a snapshot, which it is sent when it has
//! missed thousands of entries, and keeps the old one until the next entry. And it notes the index of an entry one step before its term.
//! A deposed leader would have to answer the keep-alive, learn of the next leader, and answer the read just then, within one timeout.

use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{BackendContext, Clock, GroupId, Moment};
use tokio::sync::SetOnce;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::messages::LeaseGrant;

/// One lease at the servers. A key never moves from one lease to another.
#[derive(Debug)]
pub(crate) struct Session {
    /// The group in which the core renews its holds.
    pub(crate) group: GroupId,
    /// The number of the lease at the servers.
    pub(crate) lease: i64,
    /// How long the servers keep it without a sign of life: what they answered, which may be more than was asked for.
    pub(crate) ttl: Duration,
    /// How often the core renews its holds.
    pub(crate) interval: Duration,
    clock: Clock,
    /// From when on the servers keep it for its length, at least.
    anchor: Mutex<Moment>,
    over: SetOnce<()>,
}

impl Session {
    /// Asks for a new lease. The server chooses its number: a client could get one again that it had before.
    pub(crate) async fn grant(
        connection: &Connection,
        context: &BackendContext,
        group: GroupId,
        ttl: i64,
    ) -> Result<Self, Failure> {
        let sent = context.clock().now();
        let lease = connection.ask(LeaseGrant { seconds: ttl }).await?;
        let ttl = seconds(lease.ttl);
        Ok(Self {
            group,
            lease: lease.id,
            ttl,
            interval: context.renewal_interval(ttl).map_err(Failure::Refused)?,
            clock: context.clock().clone(),
            anchor: Mutex::new(sent),
            over: SetOnce::new(),
        })
    }

    /// Renews it.
    pub(crate) async fn beat(&self, connection: &Connection) -> Result<(), Failure> {
        let (exists, since) = connection.renew(self.lease).await?;
        if !exists {
            self.end();
            return Err(Failure::LeaseOver);
        }
        let mut anchor = self.anchor.lock();
        *anchor = since.max(*anchor);
        Ok(())
    }

    pub(crate) fn anchor(&self) -> Moment {
        *self.anchor.lock()
    }

    /// Whether enough is left of what the last keep-alive proves for a hold to begin. The client's keep-alives come earlier.
    pub(crate) fn is_fresh(&self) -> bool {
        self.clock.now() < self.anchor().plus(self.interval * 2)
    }

    /// The servers say that the lease is gone.
    pub(crate) fn end(&self) {
        let _ = self.over.set(());
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.initialized()
    }

    /// Waits until it is over.
    pub(crate) async fn ended(&self) {
        self.over.wait().await;
    }
}

/// The longest lease that a server grants, in seconds: some centuries.
const LONGEST: u64 = 9_000_000_000;

/// The length of a lease, in the whole seconds that servers count.
pub(crate) fn whole_seconds(length: Duration) -> i64 {
    let seconds = length.as_secs().saturating_add(u64::from(length.subsec_nanos() > 0));
    i64::try_from(seconds.min(LONGEST)).unwrap_or(i64::MAX)
}

pub(crate) fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}
