//! The lease of a client, to which all its keys are attached, and how long it is known to live.

use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{BackendContext, Clock, GroupId, Moment};
use tokio::sync::watch;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::messages::{LeaseGrant, LeaseKeepAlive};

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
    /// When the last keep-alive that was answered with time left was sent. The moment of its answer proves nothing: a server that
    /// stood still answers late.
    anchor: Mutex<Moment>,
    is_over: watch::Sender<bool>,
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
        let lease = connection.ask(LeaseGrant { ttl }).await?;
        let ttl = seconds(lease.ttl);
        Ok(Self {
            group,
            lease: lease.id,
            ttl,
            interval: context.renewal_interval(ttl).map_err(Failure::Refused)?,
            clock: context.clock().clone(),
            anchor: Mutex::new(sent),
            is_over: watch::Sender::new(false),
        })
    }

    /// Sends one keep-alive.
    pub(crate) async fn beat(&self, connection: &Connection) -> Result<(), Failure> {
        let sent = self.clock.now();
        let answer = connection.ask(LeaseKeepAlive { id: self.lease }).await?;
        if answer.ttl <= 0 {
            self.end();
            return Err(Failure::LeaseOver);
        }
        let mut anchor = self.anchor.lock();
        *anchor = sent.max(*anchor);
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
        self.is_over.send_replace(true);
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.is_over.borrow()
    }

    /// Waits until it is over.
    pub(crate) async fn ended(&self) {
        let mut is_over = self.is_over.subscribe();
        // The sender lives as long as this session.
        let _ = is_over.wait_for(|is_over| *is_over).await;
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
