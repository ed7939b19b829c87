//! Breaks that arrive too late to count, or whose answers are lost.

use conformance_tests::Outcome;
use lock_core::Operation;
use test_servers::{Losing, TcpProxy};

use crate::stage::{LONG, ROOM, Stage, WATCHFUL, cases, ensure, soon};

cases!("late":
    a_break_whose_answer_is_lost_has_taken_the_lock,
    a_break_that_comes_late_spares_the_next_hold_of_the_session,
    a_break_whose_request_is_lost_spares_the_next_hold_of_the_session,
);

/// What ends a session for a break goes through it.
fn proxy(stage: &Stage) -> Outcome<TcpProxy> {
    stage.server.proxy(|statement| {
        lock_postgres::operation_of(statement)
            .filter(|operation| *operation == Operation::Break && statement.contains("pg_terminate_backend"))
    })
}

async fn a_break_that_comes_late_spares_the_next_hold_of_the_session() -> Outcome {
    next_hold(TcpProxy::let_go, false).await
}

/// It is sent again. Whether the first one has arrived is not known, and the hold that it names is over.
async fn a_break_whose_request_is_lost_spares_the_next_hold_of_the_session() -> Outcome {
    next_hold(TcpProxy::cut, true).await
}

/// The hold that the break names has been released, and its session has the lock again, when the request goes on.
async fn next_hold(go_on: fn(&TcpProxy), counts_as_taken: bool) -> Outcome {
    let stage = Stage::new().await?;
    let proxy = proxy(&stage)?;
    let options = "lease=10m&validation_interval=50ms&fencing=table";
    let (holder, breaker) = (stage.client(options).await?, stage.client_at(proxy.address(), options).await?);
    let lock = holder.mutex(ROOM)?;
    let guard = lock.acquire().await?;
    let id = guard.hold().id();
    proxy.hold_request(Operation::Break);
    let breaking = tokio::spawn(async move { breaker.break_holder(ROOM, &id).await });
    soon("the request", proxy.is_held()).await?;
    guard.release().await?;
    let next = lock.acquire().await?;
    go_on(&proxy);
    let broken = soon("the break", breaking).await???;
    ensure!(broken.taken_away == counts_as_taken, "{broken:?}");
    Ok(next.release().await?)
}

/// Sent again, the statement finds the session gone.
async fn a_break_whose_answer_is_lost_has_taken_the_lock() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = proxy(&stage)?;
    let (holder, breaker) = (stage.client(WATCHFUL).await?, stage.client_at(proxy.address(), LONG).await?);
    let guard = holder.mutex(ROOM)?.acquire().await?;
    proxy.lose_reply(Operation::Break, Losing::Cut);
    let broken = breaker.break_holder(ROOM, &guard.hold().id()).await?;
    ensure!(broken.taken_away, "{broken:?}");
    soon("the loss", guard.lost()).await?;
    Ok(())
}
