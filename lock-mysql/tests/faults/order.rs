//! The order of the requests of one client, which has a connection for each wait: the fastest connection is not to be first.

use std::sync::Arc;
use std::time::Duration;

use conformance_tests::Outcome;
use lock_core::{DistributedLock, LockClient, LockError, LockGuard, Operation};
use test_servers::{MySqlFlavour, TcpProxy};
use tokio::task::JoinHandle;

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, Waiter, soon, until};

cases!("order":
    a_writer_whose_wait_is_slow_goes_before_a_later_reader,
    permits_whose_wait_is_slow_go_before_later_ones,
);

/// Longer than every case.
const MINUTES: Duration = Duration::from_mins(10);

/// What a client learns while its wait is on the way to the server: that another client holds the lock, and no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// It tries first, because the wait has a limit.
    Tries,
    /// It tries while it opens a connection, because something is held on the one that it has.
    Connects,
    /// It checks the wait.
    Checks,
}

impl Before {
    const ALL: [Self; 3] = [Self::Tries, Self::Connects, Self::Checks];

    fn lease(self) -> &'static str {
        // The client checks a wait after a quarter of its lease.
        if self == Self::Checks { "lease=24s" } else { LONG }
    }

    fn start(self, lock: Arc<dyn DistributedLock>) -> JoinHandle<Result<LockGuard, LockError>> {
        tokio::spawn(async move {
            match self {
                Self::Tries => lock.acquire_for(MINUTES).await,
                Self::Connects | Self::Checks => lock.acquire().await,
            }
        })
    }

    /// Gives the second request all chances.
    async fn happens(self, proxy: &TcpProxy) -> Outcome {
        if self == Self::Checks {
            let checks = proxy.requests(Operation::Inspect);
            let are_over = || async { Ok(proxy.requests(Operation::Inspect) >= checks + 3) };
            until("three checks", are_over).await?;
        }
        Ok(())
    }
}

/// The statements that wait, and those that check a wait.
fn waits_and_checks(statement: &str) -> Option<Operation> {
    lock_mysql::operation_of(statement).filter(|operation| match operation {
        Operation::Acquire => statement.contains(",86400)"),
        _ => true,
    })
}

/// The server gets the first wait late. When that waits, the second one comes, so that `waiting` statements wait for a lock. The
/// first one has its turn first.
async fn goes_first(
    flavour: MySqlFlavour,
    held_by: impl AsyncFn(&LockClient) -> Outcome<LockGuard>,
    first: impl Fn(&LockClient) -> Outcome<Arc<dyn DistributedLock>>,
    second: impl Fn(&LockClient) -> Outcome<Arc<dyn DistributedLock>>,
    waiting: u64,
) -> Outcome {
    let stage = Stage::new(flavour).await?;
    for before in Before::ALL {
        let proxy = stage.server.proxy(waits_and_checks)?;
        let (holder, client) =
            (stage.client(LONG).await?, stage.client_at(proxy.address(), before.lease()).await?);
        let other = match before {
            Before::Connects => Some(client.mutex("another room")?.acquire().await?),
            Before::Tries | Before::Checks => None,
        };
        let (held, beside) = (held_by(&holder).await?, holder.mutex("beside")?.acquire().await?);
        let waits = proxy.requests(Operation::Acquire);
        proxy.hold_request(Operation::Acquire);
        let first = before.start(first(&client)?);
        soon("the first wait", proxy.is_held()).await?;
        let second = Waiter::start(second(&client)?);
        before.happens(&proxy).await?;
        // One that comes after the second and may overtake it waits at the server.
        let third = Waiter::start(client.mutex("beside")?);
        let is_waiting =
            || async { Ok(holder.status("beside").await.is_ok_and(|status| status.waiters.len() == 1)) };
        until("the third waits", is_waiting).await?;
        ensure!(
            proxy.requests(Operation::Acquire) == waits + 2,
            "{before:?}: the second waits before the first"
        );
        beside.release().await?;
        third.granted().await?.0.release().await?;
        proxy.let_go();
        stage.queued(waiting).await?;
        held.release().await?;
        let first = soon("the first", first).await???;
        ensure!(!second.is_finished(), "{before:?}: the second was served first");
        first.release().await?;
        let (second, _) = second.granted().await?;
        second.release().await?;
        drop(other);
        soon("the releases", client.idle()).await?;
    }
    Ok(())
}

async fn a_writer_whose_wait_is_slow_goes_before_a_later_reader(flavour: MySqlFlavour) -> Outcome {
    goes_first(
        flavour,
        async |holder| Ok(holder.rw_lock(ROOM)?.write().acquire().await?),
        |client| Ok(client.rw_lock(ROOM)?.write()),
        |client| Ok(client.rw_lock(ROOM)?.read()),
        2,
    )
    .await
}

/// The first one has the gate, where it looks for permits, and the second one waits for the gate.
async fn permits_whose_wait_is_slow_go_before_later_ones(flavour: MySqlFlavour) -> Outcome {
    goes_first(
        flavour,
        async |holder| Ok(holder.semaphore(ROOM, 3)?.acquire(3).await?),
        |client| Ok(client.semaphore(ROOM, 3)?.permits(3)?),
        |client| Ok(client.semaphore(ROOM, 3)?.permits(1)?),
        1,
    )
    .await
}
