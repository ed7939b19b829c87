//! The order of the requests of one client, which has a connection for each wait: the fastest connection is not to be first.

use std::sync::Arc;
use std::time::Duration;

use conformance_tests::Outcome;
use lock_core::{DistributedLock, LockClient, LockError, LockGuard, Operation};
use tokio::task::JoinHandle;

use crate::stage::{LONG, ROOM, Stage, Waiter, cases, ensure, soon, until};

cases!("order":
    a_writer_whose_wait_is_slow_goes_before_a_later_reader,
    permits_whose_wait_is_slow_go_before_later_ones,
);

/// Longer than every case.
const MINUTES: Duration = Duration::from_mins(10);

/// What a client does before it waits at the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// It tries, because the wait has a limit.
    Tries,
    /// It opens a connection, because something is held on the one that it has.
    Connects,
}

/// The statements that wait, and no others.
fn waits(statement: &str) -> Option<Operation> {
    lock_postgres::operation_of(statement).filter(|_| statement.contains("SET statement_timeout=0;"))
}

fn start(lock: Arc<dyn DistributedLock>, before: Before) -> JoinHandle<Result<LockGuard, LockError>> {
    tokio::spawn(async move {
        match before {
            Before::Tries => lock.acquire_for(MINUTES).await,
            Before::Connects => lock.acquire().await,
        }
    })
}

/// The server gets the first wait late. Both wait there in the end, and `release` lets them in: the first one first.
async fn goes_first(
    held_by: impl AsyncFn(&LockClient) -> Outcome<LockGuard>,
    first: impl Fn(&LockClient) -> Outcome<Arc<dyn DistributedLock>>,
    second: impl Fn(&LockClient) -> Outcome<Arc<dyn DistributedLock>>,
    is_in_queue: impl AsyncFn(&LockClient, usize) -> Outcome<bool>,
) -> Outcome {
    for before in [Before::Tries, Before::Connects] {
        let stage = Stage::new().await?;
        let proxy = stage.server.proxy(waits)?;
        let (holder, client) = (stage.client(LONG).await?, stage.client_at(proxy.address(), LONG).await?);
        let other = match before {
            Before::Tries => None,
            Before::Connects => Some(client.mutex("another room")?.acquire().await?),
        };
        let (held, beside) = (held_by(&holder).await?, holder.mutex("beside")?.acquire().await?);
        let waits = proxy.requests(Operation::Acquire);
        proxy.hold_request(Operation::Acquire);
        let first = start(first(&client)?, before);
        soon("the first wait", proxy.is_held()).await?;
        let second = Waiter::start(second(&client)?);
        // One that comes after the second and may overtake it waits at the server.
        let third = Waiter::start(client.mutex("beside")?);
        let is_waiting =
            || async { Ok(holder.status("beside").await.is_ok_and(|status| status.waiters.len() == 1)) };
        until("the third waits", is_waiting).await?;
        ensure!(!second.is_finished(), "{before:?}: the second was granted before the first waits");
        ensure!(
            proxy.requests(Operation::Acquire) == waits + 2,
            "{before:?}: the second waits before the first"
        );
        beside.release().await?;
        third.granted().await?.0.release().await?;
        proxy.let_go();
        until("both wait", || is_in_queue(&holder, 2)).await?;
        held.release().await?;
        let first = soon("the first", first).await???;
        ensure!(!second.is_finished(), "{before:?}: the second was served first");
        first.release().await?;
        let (second, _) = second.granted().await?;
        second.release().await?;
        drop(other);
        stage.nothing_is_left(&client, "at the end").await?;
    }
    Ok(())
}

async fn a_writer_whose_wait_is_slow_goes_before_a_later_reader() -> Outcome {
    goes_first(
        async |holder| Ok(holder.rw_lock(ROOM)?.read().acquire().await?),
        |client| Ok(client.rw_lock(ROOM)?.write()),
        |client| Ok(client.rw_lock(ROOM)?.read()),
        async |holder, count| Ok(holder.status(ROOM).await.is_ok_and(|status| status.waiters.len() == count)),
    )
    .await
}

async fn permits_whose_wait_is_slow_go_before_later_ones() -> Outcome {
    goes_first(
        async |holder| Ok(holder.semaphore(ROOM, 3)?.acquire(3).await?),
        |client| Ok(client.semaphore(ROOM, 3)?.permits(3)?),
        |client| Ok(client.semaphore(ROOM, 3)?.permits(1)?),
        async |holder, count| {
            let status = holder.semaphore(ROOM, 3)?.status().await;
            Ok(status.is_ok_and(|status| status.waiters.len() == count))
        },
    )
    .await
}
