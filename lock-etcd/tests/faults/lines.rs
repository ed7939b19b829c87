//! Long lines, in which each waits for its turn and few are told of a release.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use conformance_tests::Outcome;

use crate::case::{cases, ensure};
use crate::stage::{LONG, PREFIX, ROOM, Stage, Waiter, until, waiting};

cases!("lines":
    a_line_that_is_too_long_to_watch_is_served_in_order,
    readers_far_behind_a_writer_enter_together,
    a_list_of_two_pages_has_the_lock_of_the_second,
);

/// More than a waiter watches together.
const MANY: usize = 130;

/// Each waiter has a client of its own: a client sends one exclusive request at a time. The first of them has to read the line again, in
/// which more are behind it than one answer has.
async fn a_line_that_is_too_long_to_watch_is_served_in_order() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.server.proxy()?;
    let holder = stage.client(LONG).await?;
    let guard = holder.mutex(ROOM)?.acquire().await?;
    let mut waiters = Vec::new();
    for before in 0..MANY {
        let address = if before == 0 { proxy.address() } else { stage.server.address() };
        let client = stage.client_at(address, LONG).await?;
        waiters.push((Waiter::of(&client)?, client));
        waiting(&holder, before + 1).await?;
    }
    let mut last = guard.token();
    let late = stage.client(LONG).await?.mutex(ROOM)?;
    until("the holder is named", || async {
        let error = late.acquire_for(Duration::from_secs(3)).await.err();
        Ok(error.is_some_and(|error| error.holder().is_some_and(|holder| holder.id == guard.hold().id())))
    })
    .await?;
    proxy.cut();
    guard.release().await?;
    for (number, (waiter, client)) in waiters.into_iter().enumerate() {
        let (guard, _) = waiter.granted().await?;
        ensure!(guard.token() > last, "waiter {number} has {:?} after {last:?}", guard.token());
        last = guard.token();
        guard.release().await?;
        drop(client);
    }
    stage.is_free(&holder, "then").await
}

/// Behind more keys than one answer has, none of which is a lock's.
async fn a_list_of_two_pages_has_the_lock_of_the_second() -> Outcome {
    let stage = Stage::new().await?;
    for first in (0..1_050).step_by(50) {
        let keys = (first..first + 50).map(|number| format!("put {PREFIX}/{number:04} x\n"));
        let puts = keys.collect::<String>();
        let mut writing =
            stage.server.etcdctl(&["txn"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        writing.stdin.take().map(|mut input| write!(input, "\n{puts}\n\n")).transpose()?;
        ensure!(writing.wait()?.success(), "the keys from {first} on are not written");
    }
    let client = stage.client(LONG).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let found = client.list().await?;
    ensure!(found.locks.len() == 1 && found.failures.is_empty(), "listed are {found:?}");
    Ok(guard.release().await?)
}

async fn readers_far_behind_a_writer_enter_together() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let writer = stage.client(LONG).await?.rw_lock(ROOM)?.write().acquire().await?;
    let waiters: Vec<_> =
        (0..MANY).map(|_| Ok(Waiter::start(client.rw_lock(ROOM)?.read()))).collect::<Outcome<_>>()?;
    stage.in_line(MANY + 1).await?;
    writer.release().await?;
    let mut guards = Vec::new();
    for waiter in waiters {
        guards.push(waiter.granted().await?.0);
    }
    ensure!(guards.iter().all(|guard| guard.hold().is_valid()), "a reader has lost its hold");
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}
