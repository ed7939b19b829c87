//! Network partitions between the members of an ensemble: what a cut-off member continues to answer is worthless, and the holder has
//! stopped before another client has the lock.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use conformance_tests::{Failure, Outcome};
use lock_core::{LockClient, LockGuard};
use test_servers::{
    Direction, Role, ServerOptions, TcpProxy, ZooKeeperConversation, ZooKeeperEnsemble, ZooKeeperRequest,
};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{LONG, ROOM, Waiter, connect_patiently, soon, until, with_options};

cases!("ensembles":
    a_pause_and_one_heartbeat_and_then_a_cut_behind_the_follower,
    a_deposed_leader_that_goes_on_answering,
    a_creation_that_arrives_late_at_the_member_that_was_left,
);

/// The cases use the ensemble in turn: it consists of three processes, and a fault affects all cases.
static SHARED: Mutex<Option<ZooKeeperEnsemble>> = Mutex::const_new(None);

/// The member that believes that it is the leader for thirty times as long as the others.
const STUBBORN: usize = 2;

/// Ends the ensemble that the cases share.
pub fn end_shared() {
    drop(SHARED.blocking_lock().take());
}

/// The ensemble, fully connected, with the stubborn member as its leader.
async fn ensemble() -> Outcome<MappedMutexGuard<'static, ZooKeeperEnsemble>> {
    let mut shared = SHARED.lock().await;
    if shared.is_none() {
        let stubborn = ServerOptions::new().setting("syncLimit", "120");
        let options = [ServerOptions::new(), ServerOptions::new(), stubborn];
        *shared = Some(ZooKeeperEnsemble::start_each(options).await?);
    }
    let ensemble = MutexGuard::try_map(shared, Option::as_mut).map_err(|_| Failure::new("no ensemble"))?;
    ensemble.heal();
    loop {
        for member in ensemble.members() {
            until("a member serves", || async { Ok(member.role().await.is_ok()) }).await?;
        }
        let leader = ensemble.leader().await?;
        if leader == STUBBORN {
            return Ok(ensemble);
        }
        // Among members that know equally much, the one with the highest number is elected.
        let others = ensemble.others(leader);
        for other in &others {
            ensemble.sever(leader, *other);
        }
        ensemble.leader_among(&others).await?;
        ensemble.heal();
    }
}

fn url_of(ensemble: &ZooKeeperEnsemble, members: &[usize], options: &str) -> String {
    let addresses: Vec<_> = members.iter().map(|member| ensemble.member(*member).address()).collect();
    with_options(&ensemble.member(0).url_of(&addresses, "/locks", &[]), options)
}

fn proxy_of(ensemble: &ZooKeeperEnsemble, member: usize) -> Outcome<TcpProxy> {
    let target = ensemble.member(member).address();
    TcpProxy::with_conversation(target, || Box::new(ZooKeeperConversation::default()))
}

/// A client that holds a lock, and one that waits for it at another member.
struct Pair {
    client: LockClient,
    guard: LockGuard,
    recorder: EventRecorder,
    waiter: Waiter,
}

impl Pair {
    async fn new(holder: &str, next: &LockClient, name: &str) -> Outcome<Self> {
        let client = connect_patiently(holder).await?;
        let lock = client.mutex(name)?;
        let recorder = EventRecorder::of(&lock);
        let guard = soon("the lock", lock.acquire()).await??;
        let waiter = Waiter::start(next.mutex(name)?);
        let waits = || async { Ok(next.status(name).await.is_ok_and(|status| status.waiters.len() == 1)) };
        until("it waits", waits).await?;
        Ok(Self { client, guard, recorder, waiter })
    }

    /// The holder learns of its loss before the other client has the lock.
    async fn ends_in_time(self, when: &str) -> Outcome {
        let (next, granted) = self.waiter.granted().await?;
        let (reason, aborted) = self.recorder.abort().await?;
        let early = granted.saturating_duration_since(aborted);
        ensure!(aborted < granted, "{when}: both held for {:?} ({reason})", aborted - granted);
        ensure!(!self.guard.hold().is_valid() && next.hold().is_valid(), "{when}: told {early:?} before");
        next.release().await?;
        Ok(())
    }
}

/// The leader is cut off from the others without noticing: it answers its clients, while the others have another leader.
async fn a_deposed_leader_that_goes_on_answering() -> Outcome {
    let ensemble = ensemble().await?;
    let others = ensemble.others(STUBBORN);
    let next = connect_patiently(&url_of(&ensemble, &others, LONG)).await?;
    let mut pairs = Vec::new();
    for timeout in ["6s", "10s"] {
        let url = url_of(&ensemble, &[STUBBORN], &format!("session_timeout={timeout}"));
        pairs.push((timeout, Pair::new(&url, &next, &format!("deposed-{timeout}")).await?));
    }
    ensemble.isolate(STUBBORN);
    ensemble.leader_among(&others).await?;
    let role = ensemble.member(STUBBORN).role().await;
    ensure!(role == Ok(Role::Leader), "the deposed one knows too early: {role:?}");
    for (timeout, pair) in pairs {
        pair.ends_in_time(timeout).await?;
    }
    ensemble.heal();
    Ok(())
}

const SESSION: Duration = Duration::from_secs(8);

/// The longest pause, as a fraction of the session: after it, the hold is about to end by itself.
const LONGEST_PAUSE: f64 = 0.62;

/// How many clients there are; their heartbeats and pauses begin one after the other.
const PAUSED: u32 = 10;

/// The client is silent for a while. Then one heartbeat of it is acknowledged, and the network between follower and leader is cut
/// before the follower reports to the leader that it has heard of the client. The leader counts from before the pause.
async fn a_pause_and_one_heartbeat_and_then_a_cut_behind_the_follower() -> Outcome {
    let ensemble = ensemble().await?;
    let follower = ensemble.others(STUBBORN)[0];
    let next = connect_patiently(&url_of(&ensemble, &[STUBBORN], LONG)).await?;
    let mut pairs = Vec::new();
    for number in 0..PAUSED {
        let proxy = proxy_of(&ensemble, follower)?;
        let options = [("session_timeout", "8s")];
        let url = ensemble.member(follower).url_of(&[proxy.address()], "/locks", &options);
        let pair = Pair::new(&url, &next, &format!("paused-{number}")).await?;
        let bell = pair.client.mutex(format!("bell-{number}"))?.acquire().await?;
        pairs.push((proxy, pair, bell));
        tokio::time::sleep(SESSION / 6 / PAUSED).await;
    }
    // By now all clients rely on their last heartbeats.
    tokio::time::sleep(SESSION / 2).await;
    let heal_at = Instant::now() + SESSION.mul_f64(LONGEST_PAUSE);
    let pausing = pairs.iter().map(|(proxy, _, bell)| pause(&ensemble, follower, proxy, bell));
    futures_of(pausing).await?;
    tokio::time::sleep(heal_at.saturating_duration_since(Instant::now())).await;
    let before: Vec<_> = pairs.iter().map(|(_, pair, _)| pair.guard.hold().remaining()).collect();
    for (proxy, ..) in &pairs {
        proxy.heal();
    }
    // Acknowledged, and not yet reported: a member reports twice in a tick of half a second.
    let healed = Instant::now();
    let acknowledged = || {
        let now = pairs.iter().map(|(_, pair, _)| pair.guard.hold().remaining());
        now.zip(&before).filter(|(now, before)| now > *before).count()
    };
    while acknowledged() < pairs.len() / 2 && healed.elapsed() < Duration::from_millis(150) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    ensemble.part(follower, STUBBORN);
    for (number, (_proxy, pair, _bell)) in pairs.into_iter().enumerate() {
        pair.ends_in_time(&format!("client {number}")).await?;
    }
    ensemble.heal();
    Ok(())
}

/// Begins right after a heartbeat. The server's messages still arrive, so that the client library does not connect again.
async fn pause(ensemble: &ZooKeeperEnsemble, follower: usize, proxy: &TcpProxy, bell: &LockGuard) -> Outcome {
    let beats = proxy.requests(ZooKeeperRequest::Check);
    // If the machine stalled, the hold may be lost and no longer send heartbeats.
    while proxy.requests(ZooKeeperRequest::Check) == beats && bell.hold().is_valid() {
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.blackhole(Direction::ToServer);
    tokio::time::sleep(SESSION.mul_f64(0.3)).await;
    let directory = format!("/locks/{}", bell.hold().name());
    let member = ensemble.member(follower);
    for node in member.children(&directory).await?.unwrap_or_default() {
        member.write(&format!("{directory}/{node}"), b"ring").await?;
    }
    Ok(())
}

/// Polls all of them together.
async fn futures_of(futures: impl Iterator<Item = impl Future<Output = Outcome>>) -> Outcome {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    poll_fn(|context| {
        let mut index = 0;
        while index < futures.len() {
            match futures[index].as_mut().poll(context) {
                Poll::Ready(Ok(())) => drop(futures.swap_remove(index)),
                Poll::Ready(failure) => return Poll::Ready(failure),
                Poll::Pending => index += 1,
            }
        }
        if futures.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

/// A client has moved to another member and has undone its attempt; then the request reaches the member that it left.
async fn a_creation_that_arrives_late_at_the_member_that_was_left() -> Outcome {
    let ensemble = ensemble().await?;
    let others = ensemble.others(STUBBORN);
    let (old, new) = (proxy_of(&ensemble, others[0])?, proxy_of(&ensemble, others[1])?);
    let switch = TcpProxy::start(old.address())?;
    let url = ensemble.member(0).url_of(&[switch.address()], "/locks", &[("session_timeout", "6s")]);
    let client = connect_patiently(&url).await?;
    let observer = connect_patiently(&url_of(&ensemble, &[STUBBORN], LONG)).await?;
    soon("the lock", client.mutex(ROOM)?.acquire()).await??.release().await?;
    old.blackhole(Direction::ToServer);
    switch.turn_to(new.address());
    let asked = old.requests(ZooKeeperRequest::Create);
    let waiter = Waiter::start(client.mutex(ROOM)?);
    until("the request is on its way", || async { Ok(old.requests(ZooKeeperRequest::Create) > asked) })
        .await?;
    waiter.give_up().await?;
    soon("the undoing", client.idle()).await?;
    old.heal();
    // The proxy has no connections left when everything that was on its way has been handled.
    until("what was on its way has arrived", || async { Ok(old.connections() == 0) }).await?;
    let status = observer.status(ROOM).await?;
    ensure!(status.holders.is_empty(), "{status:?}");
    soon("the lock", observer.mutex(ROOM)?.acquire()).await??.release().await?;
    Ok(())
}
