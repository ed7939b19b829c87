//! A cluster: nodes fail over, slots move, while clients hold and wait.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use lock_core::spi::Mutex;
use lock_core::{Hold, LockClient, LossReason, ManualClock};
use lock_kit::LockUrl;
use test_servers::{
    Data, RedisCluster, RedisServer, SayingSentinel, ServerOptions, TcpProxy, Value, cluster_url, free_port,
    hash_slot,
};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{
    FROZEN, INTERVAL, LONG, ROOM, Waiter, connect, frozen, key, longest_belief, reach, soon, takes_nothing,
    until, with_options,
};

cases!("cluster":
    locks_work_across_the_nodes_and_only_nodes_in_use_are_connected,
    locks_of_several_nodes_are_taken_in_one_order,
    renewals_are_one_message_for_each_node,
    a_slow_node_keeps_no_renewal_at_another_waiting,
    a_killed_primary_takes_no_hold_with_it_that_its_replica_has,
    a_hold_that_the_new_primary_lacks_is_over_before_another_begins,
    a_primary_that_stood_still_while_it_was_replaced_grants_nothing,
    a_holder_that_is_cut_off_stops_before_another_begins,
    a_slot_that_comes_to_a_node_grants_nothing_at_first,
    a_moved_hold_goes_on_and_a_waiter_gets_the_lock,
    a_request_in_the_middle_of_a_move_is_not_executed,
    a_move_that_stops_in_the_middle_costs_neither_the_hold_nor_the_wait,
    nothing_is_relied_on_while_most_of_the_named_nodes_are_away,
    a_release_follows_its_slot_however_long_the_lease_is,
    a_node_that_forgets_all_grants_nothing_at_first,
    a_node_that_contradicts_the_others_is_not_relied_on,
    no_two_believe_while_slots_move_and_nodes_fail_over,
    a_missing_replica_concerns_the_locks_of_its_node_alone,
    what_is_wrong_with_the_cluster_is_said,
);

/// As many hash slots as each of the three nodes has.
const SHARE: usize = 5462;

/// A cluster, as if clients had used it for long with leases of this many seconds.
async fn cluster(lease: u64) -> Outcome<RedisCluster> {
    let cluster = RedisCluster::start().await?;
    settle(&cluster, lease).await?;
    Ok(cluster)
}

async fn settle(cluster: &RedisCluster, lease: u64) -> Outcome {
    cluster.settled().await?;
    // A node that had no time for a while may be taken for one that is down.
    let note = async || Ok(cluster.note_primaries("distlock", longest_belief(lease)).await.is_ok());
    until("the primaries are noted", note).await
}

async fn client(cluster: &RedisCluster, options: &str) -> Outcome<LockClient> {
    reach(&with_options(&cluster.url(), options)).await
}

/// Names of locks of the node with this number.
fn names(node: usize) -> impl Iterator<Item = String> {
    let all = (0..).map(|number| format!("room{number}"));
    all.filter(move |name| usize::from(hash_slot(name)) / SHARE == node)
}

/// A name of the same node as `ROOM`.
fn neighbour() -> String {
    names(usize::from(hash_slot(ROOM)) / SHARE).next().unwrap_or_default()
}

async fn owner(cluster: &RedisCluster) -> Outcome<&RedisServer> {
    cluster.owner(hash_slot(ROOM)).await
}

fn replica_of<'a>(cluster: &'a RedisCluster, primary: &RedisServer) -> &'a RedisServer {
    let all = cluster.servers();
    let number = all.iter().position(|server| server.address() == primary.address()).unwrap_or_default();
    &all[(number + 3) % 6]
}

async fn owner_after(cluster: &RedisCluster, old: SocketAddr) -> Outcome {
    until("another node is the primary", || async {
        Ok(owner(cluster).await.is_ok_and(|owner| owner.address() != old))
    })
    .await
}

/// How many connections of the crate's clients each node has.
async fn connections(cluster: &RedisCluster) -> Outcome<Vec<usize>> {
    let mut counts = Vec::new();
    for server in cluster.servers() {
        let list = server.command(&["CLIENT", "LIST"]).await?;
        counts.push(list.as_text().unwrap_or_default().matches(" name=distlock ").count());
    }
    Ok(counts)
}

async fn locks_work_across_the_nodes_and_only_nodes_in_use_are_connected() -> Outcome {
    let cluster = cluster(30).await?;
    let client = client(&cluster, "lease=30s").await?;
    let each: Vec<_> = (0..3).filter_map(|node| names(node).next()).collect();
    // The node that a client comes to first.
    let first = usize::from(hash_slot("distlock")) / SHARE;
    let many: Vec<_> = names(first).take(20).collect();
    soon("the locks of one node", client.mutex_all(&many)?.acquire()).await??.release().await?;
    let connected = connections(&cluster).await?;
    ensure!(connected[first] == 1 && connected.iter().sum::<usize>() == 1, "{connected:?}");

    let guard = soon("all", client.mutex_all(&each)?.acquire()).await??;
    let permits = client.semaphore(&each[0], 3)?.acquire(1).await?;
    let leader = client.election("leader")?.campaign("me").await?;
    let listed: Vec<_> = client.list().await?.locks.iter().map(|lock| lock.name.to_string()).collect();
    ensure!(listed.len() == 5, "{listed:?}");
    let connected = connections(&cluster).await?;
    ensure!(connected == [1, 1, 1, 0, 0, 0], "{connected:?}");
    let holders = client.status(&each[2]).await?.holders;
    let broken = client.break_holder(&each[2], &holders[0].id).await?;
    ensure!(broken.taken_away, "{broken:?}");
    until("the break is noticed", || async { Ok(!guard.hold().is_valid()) }).await?;
    drop((guard, permits, leader));
    for name in &each {
        ensure!(client.once(name, "today")?.acquire().await?.is_some(), "{name} was run before");
    }
    Ok(client.ping().await?)
}

/// Otherwise each client would soon wait for what the other has.
async fn locks_of_several_nodes_are_taken_in_one_order() -> Outcome {
    let cluster = cluster(60).await?;
    let mut order: Vec<_> = (0..3).filter_map(|node| names(node).next()).collect();
    let (holders, mut contest) = (Arc::new(AtomicUsize::new(0)), Vec::new());
    for _ in 0..2 {
        let lock = client(&cluster, "lease=60s").await?.mutex_all(&order)?;
        let holders = Arc::clone(&holders);
        contest.push(tokio::spawn(async move {
            for _ in 0..5 {
                let guard = lock.acquire().await?;
                ensure!(holders.fetch_add(1, Ordering::SeqCst) == 0, "both hold all locks");
                tokio::task::yield_now().await;
                holders.fetch_sub(1, Ordering::SeqCst);
                guard.release().await?;
            }
            Outcome::Ok(())
        }));
        order.reverse();
    }
    for client in contest {
        soon("all turns of a client", client).await???;
    }
    Ok(())
}

/// How often the commands of these names were called, without the questions of the case itself.
async fn calls<const N: usize>(server: &RedisServer, commands: [&str; N]) -> Outcome<[usize; N]> {
    let info = server.command(&["INFO", "commandstats"]).await?;
    let text = info.as_text().unwrap_or_default();
    Ok(commands.map(|command| {
        let rest = text.split_once(&format!("cmdstat_{command}:calls=")).map_or("", |(_, rest)| rest);
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    }))
}

/// A client of the nodes that the URL names, which lets the case decide when time passes.
async fn frozen_client(url: &str) -> Outcome<(LockClient, ManualClock)> {
    let (builder, time) = frozen();
    Ok((lock_redis::connect(&LockUrl::parse(&with_options(url, FROZEN))?, builder).await?, time))
}

/// A thousand holds are renewed by three messages.
async fn renewals_are_one_message_for_each_node() -> Outcome {
    const EACH: usize = 334;
    let cluster = cluster(300).await?;
    let nodes = &cluster.servers()[..3];
    // It, and not the nodes, is asked for the primaries: what a node says of itself, it says in one message with `INFO`.
    let witness = SayingSentinel::start_in_cluster(nodes.iter().map(RedisServer::address).collect())?;
    let (client, time) = frozen_client(&cluster_url([witness.address()])).await?;
    let mut guards = Vec::new();
    for name in (0..3).flat_map(|node| names(node).take(EACH)) {
        guards.push(client.mutex(name)?.acquire().await?);
    }
    for server in nodes {
        server.command(&["CONFIG", "RESETSTAT"]).await?;
    }
    time.advance(INTERVAL);
    for server in nodes {
        let asked = AtomicUsize::new(0);
        until("the holds of a node are renewed by one message", || async {
            let own = asked.fetch_add(1, Ordering::Relaxed);
            let [renewed, info, of_itself] = calls(server, ["evalsha", "info", "cluster|nodes"]).await?;
            ensure!(renewed <= EACH, "{renewed} renewals");
            // Each message of renewals ends with it.
            Ok((renewed, info) == (EACH, own + of_itself + 1))
        })
        .await?;
    }
    Ok(())
}

/// Where a hash slot has moved since, a group of holds has parts at two nodes.
async fn a_slow_node_keeps_no_renewal_at_another_waiting() -> Outcome {
    let cluster = cluster(300).await?;
    let (nodes, mut fresh) = (&cluster.servers()[..2], names(0));
    for (slow, other) in [(0, 1), (1, 0)] {
        let (client, time) = frozen_client(&cluster.url()).await?;
        let [stays, leaves] = [(); 2].map(|()| fresh.next().unwrap_or_default());
        let guards = [client.mutex(stays)?.acquire().await?, client.mutex(&leaves)?.acquire().await?];
        cluster.move_slot(hash_slot(&leaves), &nodes[1]).await?;
        let looking = client.clone();
        let looking = tokio::spawn(async move { looking.status(&leaves).await });
        until("the client knows of the move", || async {
            time.advance(Duration::from_millis(5));
            Ok(looking.is_finished())
        })
        .await?;
        ensure!(looking.await??.is_held(), "not found at the new node");
        nodes[slow].command(&["CLIENT", "PAUSE", "600000", "WRITE"]).await?;
        nodes[other].command(&["CONFIG", "RESETSTAT"]).await?;
        time.advance(INTERVAL);
        until("the other node is asked", || async { Ok(calls(&nodes[other], ["evalsha"]).await? == [1]) })
            .await?;
        let left = || guards[other].hold().remaining();
        let unrenewed = left();
        // Until the longest time for a request is over.
        until("its answer counts", || async {
            time.advance(Duration::from_millis(100));
            Ok(left() > unrenewed)
        })
        .await?;
        nodes[slow].command(&["CLIENT", "UNPAUSE"]).await?;
        drop(guards);
        client.idle().await;
    }
    Ok(())
}

async fn a_killed_primary_takes_no_hold_with_it_that_its_replica_has() -> Outcome {
    let cluster = cluster(20).await?;
    let (holder, other) = (client(&cluster, "lease=20s").await?, client(&cluster, "lease=20s").await?);
    let lock = holder.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&other)?;
    let old = owner(&cluster).await?;
    let replica = replica_of(&cluster, old);
    let size = async |server: &RedisServer| server.command(&["DBSIZE"]).await;
    until("the replica has the hold", || async { Ok(size(replica).await? == size(old).await?) }).await?;
    old.kill()?;
    recorder.restored().await?;
    ensure!(owner(&cluster).await?.address() == replica.address(), "another node is the primary");
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "{:?}", recorder.events());
    ensure!(!waiter.is_finished(), "granted while the hold lasts");
    ensure!(takes_nothing(&other, &neighbour()).await?, "a new primary granted a lock at once");
    let elsewhere = names((usize::from(hash_slot(ROOM)) / SHARE + 1) % 3).next().unwrap_or_default();
    ensure!(!takes_nothing(&other, &elsewhere).await?, "the other nodes grant nothing");
    Ok(guard.release().await?)
}

/// That the earlier holder learns of its loss before the waiter has the lock, which has a higher token.
async fn hand_over(
    harm: impl AsyncFnOnce(&RedisCluster, &RedisServer) -> Outcome,
    cluster: &RedisCluster,
    holder: &LockClient,
) -> Outcome {
    let other = client(cluster, "lease=4s").await?;
    let lock = holder.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let old = owner(cluster).await?;
    // Both have a connection to the node.
    for each in [holder, &other] {
        soon("the lock", each.mutex(neighbour())?.acquire()).await??.release().await?;
    }
    let replica = replica_of(cluster, old);
    replica.stop()?;
    // What is written from now on never reaches it.
    old.command(&["CLIENT", "KILL", "TYPE", "replica"]).await?;
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&other)?;
    harm(cluster, old).await?;
    let (_, told) = recorder.abort().await?;
    let (next, granted) = waiter.granted().await?;
    ensure!(told < granted, "granted {:?} before the holder knew of its loss", told - granted);
    ensure!(next.token() > guard.token(), "{:?} was followed by {:?}", guard.token(), next.token());
    Ok(next.release().await?)
}

async fn a_hold_that_the_new_primary_lacks_is_over_before_another_begins() -> Outcome {
    let cluster = cluster(4).await?;
    let holder = client(&cluster, "lease=4s").await?;
    let harm = async |cluster: &RedisCluster, old: &RedisServer| {
        old.kill()?;
        replica_of(cluster, old).resume()?;
        owner_after(cluster, old.address()).await
    };
    hand_over(harm, &cluster, &holder).await
}

async fn a_node_that_forgets_all_grants_nothing_at_first() -> Outcome {
    let cluster = cluster(4).await?;
    let holder = client(&cluster, "lease=4s").await?;
    let harm = async |_: &RedisCluster, old: &RedisServer| old.restart(Data::Lost).await;
    hand_over(harm, &cluster, &holder).await
}

/// Proxies in front of the nodes that a client asks, and the URL of such a client.
fn proxied(cluster: &RedisCluster) -> Outcome<(Vec<TcpProxy>, String)> {
    let each = cluster.servers()[..3].iter();
    let proxies = each.map(|server| TcpProxy::start(server.address())).collect::<Outcome<Vec<_>>>()?;
    let url = cluster_url(proxies.iter().map(TcpProxy::address));
    Ok((proxies, url))
}

/// The holder and its node reach each other, and no other node.
async fn a_holder_that_is_cut_off_stops_before_another_begins() -> Outcome {
    let cluster = cluster(4).await?;
    let (proxies, url) = proxied(&cluster)?;
    let holder = reach(&with_options(&url, "lease=4s")).await?;
    let harm = async |cluster: &RedisCluster, old: &RedisServer| {
        proxies.iter().for_each(TcpProxy::sever);
        old.stop()?;
        let replica = replica_of(cluster, old);
        replica.resume()?;
        replica.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await?;
        old.resume()
    };
    hand_over(harm, &cluster, &holder).await
}

async fn a_primary_that_stood_still_while_it_was_replaced_grants_nothing() -> Outcome {
    let cluster = cluster(4).await?;
    let (proxies, url) = proxied(&cluster)?;
    let lonely = reach(&with_options(&url, "lease=4s")).await?;
    let other = client(&cluster, "lease=4s").await?;
    let name = neighbour();
    soon("the lock", lonely.mutex(ROOM)?.acquire()).await??.release().await?;
    let old = owner(&cluster).await?;
    old.stop()?;
    proxies.iter().for_each(TcpProxy::sever);
    replica_of(&cluster, old).command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await?;
    until("it has no trust left", || takes_nothing(&lonely, &name)).await?;
    old.resume()?;
    until("it is demoted, and has granted nothing before", || async {
        let role = old.command(&["ROLE"]).await?;
        ensure!(takes_nothing(&lonely, &name).await?, "the old primary, which is {role:?}, granted a lock");
        Ok(role.texts().first() == Some(&"slave"))
    })
    .await?;
    soon("the lock", other.mutex(&name)?.acquire()).await??.release().await.map_err(Into::into)
}

/// It may have come from a node that is gone; the others of the node go on.
async fn a_slot_that_comes_to_a_node_grants_nothing_at_first() -> Outcome {
    let cluster = RedisCluster::start().await?;
    let there = &cluster.servers()[1];
    // The first one makes it the node with the highest epoch, which pauses as a new primary.
    let moved: Vec<_> = names(0).take(3).collect();
    cluster.move_slot(hash_slot(&moved[0]), there).await?;
    settle(&cluster, 4).await?;
    let client = client(&cluster, "lease=4s").await?;
    let own = names(1).next().unwrap_or_default();
    ensure!(!takes_nothing(&client, &own).await?, "the node grants nothing");
    ensure!(!takes_nothing(&client, &moved[1]).await?, "the old owner grants nothing");
    let began = Instant::now();
    cluster.move_slot(hash_slot(&moved[1]), there).await?;
    ensure!(takes_nothing(&client, &moved[1]).await?, "the slot came, and grants at once");
    soon("the lock", client.mutex(&moved[1])?.acquire()).await??.release().await?;
    ensure!(began.elapsed() > Duration::from_millis(5500), "granted after {:?}", began.elapsed());
    ensure!(!takes_nothing(&client, &own).await?, "the node grants nothing");
    // One that comes later finds it noted.
    ensure!(!takes_nothing(&self::client(&cluster, "lease=4s").await?, &moved[1]).await?, "not noted");
    cluster.move_slot(hash_slot(&moved[2]), there).await?;
    let later = self::client(&cluster, "lease=4s").await?;
    ensure!(takes_nothing(&later, &moved[2]).await?, "a client that comes later does not know of the slot");
    ensure!(!takes_nothing(&later, &own).await?, "the node grants nothing");
    Ok(())
}

async fn a_moved_hold_goes_on_and_a_waiter_gets_the_lock() -> Outcome {
    let cluster = cluster(4).await?;
    let (holder, other) = (client(&cluster, "lease=4s").await?, client(&cluster, "lease=4s").await?);
    let lock = holder.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    // It stays, and was renewed together with the other until then.
    let stays = holder.mutex(neighbour())?.acquire().await?;
    let first = Waiter::of(&other)?;
    let slot = hash_slot(ROOM);
    let there = cluster.owner((slot + 8000) % 16384).await?;
    until("the waiter waits", || async { Ok(other.status(ROOM).await?.waiters.len() == 1) }).await?;
    cluster.move_slot(slot, there).await?;
    // The new node is in another epoch now, so a connection that the client has to it is replaced.
    until("the new node answers", || is_found(&other)).await?;
    let moved = Instant::now();
    until("two leases have passed", || async { Ok(moved.elapsed() > Duration::from_secs(8)) }).await?;
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "{:?}", recorder.events());
    ensure!(stays.hold().is_valid(), "the hold that was not moved is lost");
    ensure!(!first.is_finished(), "granted while the hold lasts");
    guard.release().await?;
    let (next, _) = first.granted().await?;
    Ok(next.release().await?)
}

/// Stops in the middle of a move of the `ROOM`'s slot, when the record of the hold is at the new node and its other keys are not.
async fn move_a_part(cluster: &RedisCluster) -> Outcome<(&RedisServer, &RedisServer)> {
    let slot = hash_slot(ROOM);
    let (from, to) = (owner(cluster).await?, cluster.owner((slot + 8000) % 16384).await?);
    let id = async |server: &RedisServer| server.command(&["CLUSTER", "MYID"]).await;
    let (source, target) = (id(from).await?, id(to).await?);
    let [source, target] = [&source, &target].map(|id| id.as_text().unwrap_or_default());
    let (slot, port) = (slot.to_string(), to.address().port().to_string());
    to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", source]).await?;
    from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", target]).await?;
    from.command(&["MIGRATE", "127.0.0.1", &port, &key(ROOM, 'l'), "0", "10000"]).await?;
    Ok((from, to))
}

/// The new node has no other key then: both nodes could grant a lock that has none yet.
async fn a_request_in_the_middle_of_a_move_is_not_executed() -> Outcome {
    let cluster = cluster(300).await?;
    let holder = client(&cluster, LONG).await?;
    let guard = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client(&cluster, LONG).await?)?;
    until("the waiter waits", || async { Ok(holder.status(ROOM).await?.waiters.len() == 1) }).await?;
    // They ask the node before they know of the move, and then find that it has the slot no more.
    let short = format!("{LONG}&timeout=2s");
    let asking = [client(&cluster, &short).await?, client(&cluster, &short).await?];
    for each in &asking {
        soon("the lock", each.mutex(neighbour())?.acquire()).await??.release().await?;
    }
    let (from, to) = move_a_part(&cluster).await?;
    let slot = hash_slot(ROOM);
    let unused = (0..u32::MAX).map(|number| format!("unused{number}")).find(|name| hash_slot(name) == slot);
    let names = [(ROOM, "TRYAGAIN"), (unused.as_deref().unwrap_or_default(), "ASK")];
    for (each, (name, refusal)) in asking.iter().zip(names) {
        ensure!(takes_nothing(each, name).await?, "an answer about {name} in the middle of the move");
        let errors = from.command(&["INFO", "errorstats"]).await?;
        let was_asked = errors.as_text().unwrap_or_default().contains(&format!("errorstat_{refusal}:"));
        ensure!(was_asked, "not refused with {refusal}: {errors:?}");
    }
    let count = to.command(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]).await?;
    ensure!(count == Value::Integer(1), "the new node has {count:?} keys");
    cluster.move_slot(slot, to).await?;
    until("the new node answers", || is_found(&holder)).await?;
    ensure!(guard.hold().is_valid() && !waiter.is_finished(), "the hold has ended");
    Ok(soon("the release", guard.release()).await??)
}

/// Whether the `ROOM` is held, as far as is known.
async fn is_found(client: &LockClient) -> Outcome<bool> {
    match client.status(ROOM).await {
        Err(error) if error.is_retryable() => Ok(false),
        status => {
            ensure!(status?.is_held(), "not found at the new node");
            Ok(true)
        }
    }
}

async fn a_move_that_stops_in_the_middle_costs_neither_the_hold_nor_the_wait() -> Outcome {
    let cluster = cluster(20).await?;
    let (holder, other) = (client(&cluster, "lease=20s").await?, client(&cluster, "lease=20s").await?);
    let lock = holder.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&other)?;
    until("the waiter waits", || async { Ok(holder.status(ROOM).await?.waiters.len() == 1) }).await?;
    let (_, to) = move_a_part(&cluster).await?;
    let began = Instant::now();
    recorder.suspect().await?;
    cluster.move_slot(hash_slot(ROOM), to).await?;
    recorder.restored().await?;
    ensure!(
        guard.hold().is_valid() && recorder.aborts() == 0,
        "{:?} {:?}",
        began.elapsed(),
        recorder.events()
    );
    ensure!(!waiter.is_finished(), "granted while the hold lasts");
    guard.release().await?;
    let (next, _) = waiter.granted().await?;
    Ok(next.release().await?)
}

/// The client still reaches the node of the lock.
async fn nothing_is_relied_on_while_most_of_the_named_nodes_are_away() -> Outcome {
    let cluster = cluster(12).await?;
    let (proxies, url) = proxied(&cluster)?;
    let client = reach(&with_options(&url, "lease=12s")).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let _guard = lock.acquire().await?;
    proxies[..2].iter().for_each(TcpProxy::sever);
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Expired, "lost because {reason}");
    ensure!(takes_nothing(&client, &neighbour()).await?, "one node of three is relied on");
    proxies[1].heal();
    soon("the lock", lock.acquire()).await??.release().await?;
    Ok(())
}

/// Its node is asked what it has once in many minutes. The client has no connection to the new one; or has one, which it leaves,
/// because the node has a new epoch with the slot.
async fn a_release_follows_its_slot_however_long_the_lease_is() -> Outcome {
    for is_known in [false, true] {
        let cluster = cluster(3600).await?;
        let client = client(&cluster, "lease=1h").await?;
        let mut of_the_first = names(usize::from(hash_slot("distlock")) / SHARE);
        let [stays, leaves] = [(); 2].map(|()| of_the_first.next().unwrap_or_default());
        let _stays = client.mutex(stays)?.acquire().await?;
        let guard = client.mutex(&leaves)?.acquire().await?;
        let slot = hash_slot(&leaves);
        let other = (slot + 8000) % 16384;
        let mut there = names(usize::from(other) / SHARE);
        let at_the_new_one = client.mutex(there.next().unwrap_or_default())?;
        let known =
            if is_known { Some(soon("the other lock", at_the_new_one.acquire()).await??) } else { None };
        cluster.move_slot(slot, cluster.owner(other).await?).await?;
        let status = soon("the status", client.status(&leaves)).await??;
        ensure!(status.is_held(), "not found at the new node");
        soon("the release", guard.release()).await??;
        drop(known);
    }
    Ok(())
}

/// Others may have been told of a new owner, and not yet of its epoch.
async fn a_node_that_contradicts_the_others_is_not_relied_on() -> Outcome {
    let options = ServerOptions::new().setting("cluster-require-full-coverage", "no");
    let node = RedisServer::start_as_node(&options).await?;
    node.take_all_slots().await?;
    node.command(&["CLUSTER", "DELSLOTS", "16383"]).await?;
    node.note_primary("distlock", longest_belief(4)).await?;
    // It says that the node has all hash slots.
    let other = SayingSentinel::start(Some(node.address()))?;
    let url = with_options(&cluster_url([other.address()]), "lease=4s");
    let client = reach(&url).await?;
    soon("a lock that the node has", client.mutex(ROOM)?.acquire()).await??.release().await?;
    node.command(&["CLUSTER", "BUMPEPOCH"]).await?;
    until("the other epoch is noticed", || takes_nothing(&client, ROOM)).await?;
    let error = connect(&with_options(&url, "connect_timeout=0s")).await.err();
    ensure!(error.is_some_and(|error| error.is_retryable()), "a client relies on it");
    Ok(())
}

/// Eight clients; each that has the lock looks whether another believes that it has it.
async fn no_two_believe_while_slots_move_and_nodes_fail_over() -> Outcome {
    const CLIENTS: usize = 8;
    let cluster = cluster(2).await?;
    let slot = hash_slot(ROOM);
    let believers = Arc::new(Mutex::new(Vec::<Hold>::new()));
    let (visits, overlaps) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let is_over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let client = client(&cluster, "lease=2s").await?;
        let (believers, visits, overlaps) =
            (Arc::clone(&believers), Arc::clone(&visits), Arc::clone(&overlaps));
        let is_over = Arc::clone(&is_over);
        tasks.push(tokio::spawn(async move {
            let lock = client.mutex(ROOM)?;
            while !is_over.load(Ordering::Relaxed) {
                let guard = match lock.try_acquire_for(Duration::from_secs(20)).await {
                    Ok(Some(guard)) => guard,
                    Ok(None) => continue,
                    Err(error) if error.is_retryable() => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    }
                    Err(error) => return Outcome::Err(error.into()),
                };
                {
                    let mut all = believers.lock();
                    all.retain(Hold::is_valid);
                    if guard.hold().is_valid() {
                        overlaps.fetch_add(all.len(), Ordering::Relaxed);
                        all.push(guard.hold().clone());
                    }
                }
                visits.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(30)).await;
                // An error is the loss of a hold, which some of these changes bring.
                let _ = guard.release().await;
            }
            Ok(())
        }));
    }
    let go_on = async |what: &str| {
        let before = visits.load(Ordering::Relaxed);
        until(&format!("the clients go on after {what}"), || async {
            ensure!(overlaps.load(Ordering::Relaxed) == 0, "two believed after {what}");
            Ok(visits.load(Ordering::Relaxed) > before + 3 * CLIENTS)
        })
        .await
    };
    go_on("the start").await?;
    for _ in 0..2 {
        let (home, other) = (owner(&cluster).await?, cluster.owner((slot + 8000) % 16384).await?);
        cluster.move_slot(slot, other).await?;
        cluster.move_slot(slot, home).await?;
        go_on("a slot moved and came back").await?;
    }
    for how in [&["CLUSTER", "FAILOVER"][..], &["CLUSTER", "FAILOVER", "TAKEOVER"]] {
        cluster.settled().await?;
        let old = owner(&cluster).await?;
        replica_of(&cluster, old).command(how).await?;
        owner_after(&cluster, old.address()).await?;
        go_on("a failover by hand").await?;
    }
    cluster.settled().await?;
    let old = owner(&cluster).await?;
    old.kill()?;
    owner_after(&cluster, old.address()).await?;
    old.restart(Data::Lost).await?;
    go_on("a primary was killed").await?;
    cluster.settled().await?;
    let old = owner(&cluster).await?;
    old.stop()?;
    owner_after_the_stopped(&cluster, old).await?;
    old.resume()?;
    go_on("a primary stood still").await?;
    is_over.store(true, Ordering::Relaxed);
    for task in tasks {
        soon("the client", task).await???;
    }
    ensure!(overlaps.load(Ordering::Relaxed) == 0, "two believed at once");
    Ok(())
}

/// It answers no command, so only its replica can say.
async fn owner_after_the_stopped(cluster: &RedisCluster, old: &RedisServer) -> Outcome {
    let replica = replica_of(cluster, old);
    until("the replica takes over", || async {
        let role = replica.command(&["ROLE"]).await?;
        Ok(role.texts().first() == Some(&"master"))
    })
    .await
}

async fn a_missing_replica_concerns_the_locks_of_its_node_alone() -> Outcome {
    let cluster = cluster(60).await?;
    let client = client(&cluster, "lease=60s&timeout=11s&durable=replicas:1").await?;
    let there = usize::from(hash_slot(ROOM)) / SHARE;
    let elsewhere = names((there + 1) % 3).next().unwrap_or_default();
    replica_of(&cluster, owner(&cluster).await?).stop()?;
    let error = soon("the answer", client.mutex(ROOM)?.try_acquire()).await?.err();
    let text = error.map(|error| error.to_string()).unwrap_or_default();
    ensure!(text.contains("0 of 1 replicas"), "{text}");
    let _guard = soon("the lock", client.mutex(elsewhere)?.acquire()).await??;
    Ok(())
}

async fn what_is_wrong_with_the_cluster_is_said() -> Outcome {
    let refused = async |url: String, part: &str| {
        let error = connect(&with_options(&url, "connect_timeout=0s")).await.err();
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        ensure!(text.contains(part), "{url}: {text}");
        Outcome::Ok(())
    };
    let nowhere: SocketAddr = ([127, 0, 0, 1], free_port()?).into();
    refused(cluster_url([nowhere]), "no majority of the 1 nodes").await?;
    let server = RedisServer::start().await?;
    refused(cluster_url([server.address()]), "cluster support disabled").await?;
    let node = RedisServer::start_as_node(&ServerOptions::new()).await?;
    refused(cluster_url([node.address()]), "hash slot").await?;
    refused(node.url(), "redis+cluster://").await?;
    Ok(())
}
