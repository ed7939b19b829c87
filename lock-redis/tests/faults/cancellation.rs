//! A future that is dropped while the server has to be told a script again.

use std::pin::pin;

use conformance_tests::Outcome;
use test_servers::Direction;

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, poll_times, soon};

cases!("cancellation":
    while_the_script_is_loaded,
);

async fn while_the_script_is_loaded() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    let lock = client.mutex(ROOM)?;
    for _ in 0..3 {
        stage.server.command(&["SCRIPT", "FLUSH"]).await?;
        proxy.blackhole(Direction::ToServer);
        {
            let mut acquiring = pin!(lock.acquire());
            ensure!(poll_times(acquiring.as_mut(), 1).await?.is_none(), "it was not pending");
            proxy.heal();
        }
        soon("the undoing", client.idle()).await?;
        stage.nothing_is_left("the script was forgotten").await?;
        stage.works(&client).await?;
    }
    Ok(())
}
