//! Runtimes that end before the holders of locks do.

use conformance_tests::Outcome;
use test_servers::MySqlFlavour;

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, Waiter, connect, soon, with_options};

cases!("runtimes":
    a_hold_ends_with_the_runtime_of_its_connection,
);

/// The server frees the lock when the connection is closed, and only the end of its runtime closes it.
async fn a_hold_ends_with_the_runtime_of_its_connection(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let url = with_options(&with_options(&stage.url(), LONG), "engine=caller");
    let (guard, runtime) = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let guard = runtime.block_on(async { connect(&url).await?.mutex(ROOM)?.acquire().await })?;
        Outcome::Ok((guard, runtime))
    })
    .await??;
    let waiter = Waiter::of(&stage.client(LONG).await?)?;
    stage.queued(1).await?;
    ensure!(guard.hold().is_valid(), "it is lost already");
    runtime.shutdown_background();
    let (next, _) = waiter.granted().await?;
    ensure!(!guard.hold().is_valid(), "two hold the lock");
    // The rest of the first client has no runtime in which it could release the lock.
    std::mem::forget(guard);
    Ok(soon("the release", next.release()).await??)
}
