//! A cluster of three whose members are stopped, killed or alone.

use std::net::SocketAddr;
use std::time::Duration;

use conformance_tests::Outcome;
use test_servers::{Data, EtcdServer};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{PREFIX, ROOM, Waiter, reach, soon, waiting, with_options};

cases!("clusters":
    a_leader_that_stops_costs_no_hold_and_no_place,
    a_leader_that_is_killed_costs_no_hold_and_no_place,
    a_follower_that_stops_costs_no_hold_and_no_place,
    without_a_majority_a_hold_ends_in_time_and_a_wait_goes_on,
    a_client_starts_at_the_next_server_while_the_first_is_down,
);

async fn client_of(members: &[&EtcdServer], options: &str) -> Outcome<lock_core::LockClient> {
    let addresses: Vec<SocketAddr> = members.iter().map(|member| member.address()).collect();
    reach(&with_options(&members[0].url_at(&addresses, PREFIX), options)).await
}

async fn a_leader_that_stops_costs_no_hold_and_no_place() -> Outcome {
    let members = EtcdServer::start_cluster().await?;
    let leads = EtcdServer::leader(&members).await?;
    without(&members, leads, |member| member.stop()).await?;
    members[leads].resume()
}

async fn a_leader_that_is_killed_costs_no_hold_and_no_place() -> Outcome {
    let members = EtcdServer::start_cluster().await?;
    let leads = EtcdServer::leader(&members).await?;
    without(&members, leads, |member| member.kill()).await?;
    members[leads].restart(Data::Kept).await
}

async fn a_follower_that_stops_costs_no_hold_and_no_place() -> Outcome {
    let members = EtcdServer::start_cluster().await?;
    let follows = (EtcdServer::leader(&members).await? + 1) % 3;
    without(&members, follows, |member| member.stop()).await?;
    members[follows].resume()
}

async fn without(members: &[EtcdServer], harmed: usize, harm: impl Fn(&EtcdServer) -> Outcome) -> Outcome {
    // The one that is about to be harmed is tried first.
    let order: Vec<_> = (0..3).map(|offset| &members[(harmed + offset) % 3]).collect();
    let client = client_of(&order, "lease=20s&timeout=2s").await?;
    let other = client_of(&order[1..], "lease=20s&timeout=2s").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&other)?;
    waiting(&client, 1).await?;
    harm(&members[harmed])?;
    recorder.suspect().await?;
    recorder.restored().await?;
    ensure!(guard.hold().is_valid() && !waiter.is_finished(), "{:?}", recorder.events());
    soon("the release", guard.release()).await??;
    let (next, _) = waiter.granted().await?;
    next.release().await?;
    ensure!(recorder.aborts() == 0, "{:?}", recorder.events());
    Ok(())
}

async fn without_a_majority_a_hold_ends_in_time_and_a_wait_goes_on() -> Outcome {
    let members = EtcdServer::start_cluster().await?;
    let all: Vec<_> = members.iter().collect();
    let (client, other) = (client_of(&all, "lease=6s").await?, client_of(&all, "lease=60s").await?);
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&other)?;
    waiting(&client, 1).await?;
    members[1].stop()?;
    members[2].stop()?;
    let (_, lost) = recorder.abort().await?;
    ensure!(!waiter.is_finished(), "granted without a majority");
    tokio::time::sleep(Duration::from_millis(500)).await;
    members[1].resume()?;
    members[2].resume()?;
    let (next, granted) = waiter.granted().await?;
    ensure!(lost < granted && !guard.hold().is_valid(), "both held for {:?}", lost - granted);
    Ok(next.release().await?)
}

async fn a_client_starts_at_the_next_server_while_the_first_is_down() -> Outcome {
    let members = EtcdServer::start_cluster().await?;
    members[0].kill()?;
    let client = client_of(&members.iter().collect::<Vec<_>>(), "lease=20s").await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    guard.release().await?;
    Ok(())
}
