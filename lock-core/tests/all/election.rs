//! Elections: one leader at a time, its value, those who watch it, and the body that runs where it leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{ByHand, DropAfter, SOON, eventually, name};
use lock_core::{
    ClientBuilder, ErrorKind, Hold, LeaderWatch, LockClient, LockError, LockListener, LossReason, Operation,
    Participant,
};
use lock_memory::faults::{Fault, Gate};
use lock_memory::{Loss, MemoryOptions, MemoryServer, Replies, Told};

const NAME: &str = "scheduler";
const HOUR: Duration = Duration::from_secs(3600);

fn value(leader: Option<Participant>) -> Option<String> {
    leader.and_then(|leader| leader.value)
}

async fn next(watch: &mut LeaderWatch) -> Option<String> {
    value(tokio::time::timeout(SOON, watch.changed()).await.expect("a change").unwrap())
}

/// A watch that sees nothing but local changes.
async fn local_watch(client: &LockClient) -> LeaderWatch {
    client.election(NAME).unwrap().with_interval(HOUR).observe().await.unwrap()
}

#[tokio::test]
async fn one_leads_at_a_time_and_the_term_rises() {
    let server = MemoryServer::new();
    let (ours, theirs) = (server.client().unwrap(), server.client().unwrap());
    let first = ours.election(NAME).unwrap().campaign("a").await.unwrap();
    let mut second = ByHand::begun({
        let election = theirs.election(NAME).unwrap();
        async move { election.campaign("b").await }
    });
    let waiting = ours.status(NAME).await.unwrap();
    assert_eq!(
        (waiting.holders[0].value.as_deref(), waiting.waiters[0].value.as_deref()),
        (Some("a"), Some("b"))
    );
    assert!(second.poll().is_none() && first.is_leading());
    let term = first.term();
    first.resign().await.unwrap();
    let second = second.output().await.unwrap();
    assert!(second.term() > term);
    assert_eq!(value(ours.election(NAME).unwrap().observe().await.unwrap().leader()).as_deref(), Some("b"));
    second.resign().await.unwrap();
    assert!(server.is_empty());
}

#[tokio::test]
async fn a_campaign_with_a_deadline_ends_and_leaves_no_candidate() {
    let server = MemoryServer::new();
    let (ours, theirs) = (server.client().unwrap(), server.client().unwrap());
    let first = ours.election(NAME).unwrap().campaign_for("a", Duration::ZERO).await.unwrap();
    for client in [&ours, &theirs] {
        let election = client.election(NAME).unwrap();
        for longest in [Duration::ZERO, Duration::from_millis(10)] {
            let error = election.campaign_for("b", longest).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy);
        }
        client.idle().await;
    }
    assert!(ours.status(NAME).await.unwrap().waiters.is_empty());
    let mut second = ByHand::begun({
        let election = theirs.election(NAME).unwrap();
        async move { election.campaign_for("b", HOUR).await }
    });
    assert!(second.poll().is_none());
    first.resign().await.unwrap();
    second.output().await.unwrap().resign().await.unwrap();
    assert!(server.is_empty());
}

#[tokio::test]
async fn an_election_and_a_mutex_of_one_name_exclude_each_other() {
    let server = MemoryServer::new();
    let (ours, theirs) = (server.client().unwrap(), server.client().unwrap());
    let leadership = ours.election(NAME).unwrap().campaign("a").await.unwrap();
    for client in [&ours, &theirs] {
        assert!(client.mutex(NAME).unwrap().try_acquire().await.unwrap().is_none());
    }
    drop(leadership);
    ours.idle().await;
    let _held = theirs.mutex(NAME).unwrap().acquire().await.unwrap();
    let election = ours.election(NAME).unwrap();
    let _waits = ByHand::begun(election.campaign("a"));
    let leader = election.observe().await.unwrap().leader().expect("the lock is held");
    assert_eq!(leader.value, None, "its holder is no candidate");
}

/// The second candidate of a client takes over the attempt that was begun for the first.
#[tokio::test]
async fn each_candidate_of_one_client_shows_its_own_value() {
    let server = MemoryServer::new();
    let (ours, theirs) = (server.client().unwrap(), server.client().unwrap());
    let held = theirs.mutex(NAME).unwrap().acquire().await.unwrap();
    let election = ours.election(NAME).unwrap();
    let first = ByHand::begun(election.campaign("a"));
    let second = ByHand::begun(election.campaign("b"));
    drop(first);
    held.release().await.unwrap();
    let leadership = second.output().await.unwrap();
    assert_eq!(value(election.observe().await.unwrap().leader()).as_deref(), Some("b"));
    leadership.resign().await.unwrap();
    let plain = ours.mutex(NAME).unwrap().acquire().await.unwrap();
    assert_eq!(value(election.observe().await.unwrap().leader()), None);
    plain.release().await.unwrap();
}

#[tokio::test]
async fn a_leader_changes_its_value() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let mut watch = local_watch(&client).await;
    let leadership = client.election(NAME).unwrap().campaign("a").await.unwrap();
    assert_eq!(next(&mut watch).await.as_deref(), Some("a"));
    leadership.proclaim("b").await.unwrap();
    assert_eq!(next(&mut watch).await.as_deref(), Some("b"));
    leadership.proclaim("").await.unwrap();
    assert_eq!(next(&mut watch).await, None);
    assert!(watch.leader().is_some(), "it still leads");

    let leading = lock_core::Leading::clone(&leadership);
    leadership.resign().await.unwrap();
    assert_eq!(leading.proclaim("c").await.unwrap_err().kind(), ErrorKind::NotOwner);
    assert_eq!((next(&mut watch).await, watch.leader()), (None, None));
}

#[tokio::test]
async fn a_leader_that_has_lost_changes_nothing() {
    let server = MemoryServer::new();
    let (ours, theirs) = (server.client().unwrap(), server.client().unwrap());
    let leadership = ours.election(NAME).unwrap().campaign("a").await.unwrap();
    assert!(server.lose(&name(NAME), Loss::Delete, Told::WhenAsked));
    let successor = theirs.election(NAME).unwrap().campaign("b").await.unwrap();
    let error = leadership.proclaim("c").await.unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(LossReason::Deleted)));
    assert_eq!(leadership.lost().await, Some(LossReason::Deleted), "and it knows now");
    assert_eq!(value(theirs.election(NAME).unwrap().observe().await.unwrap().leader()).as_deref(), Some("b"));
    successor.resign().await.unwrap();
}

#[tokio::test]
async fn a_value_is_bounded() {
    let client = MemoryServer::new().client().unwrap();
    let election = client.election(NAME).unwrap();
    let long = "x".repeat(1025);
    let error = election.campaign(long.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    let leadership = election.campaign(&long[1..]).await.unwrap();
    assert_eq!(leadership.proclaim(long).await.unwrap_err().kind(), ErrorKind::InvalidOption);
    assert!(leadership.is_leading());
    leadership.resign().await.unwrap();
}

#[tokio::test]
async fn those_who_do_not_run_see_the_leader() {
    let server = MemoryServer::new();
    let (ours, theirs) = (server.client().unwrap(), server.client().unwrap());
    let election = ours.election(NAME).unwrap().with_interval(Duration::from_millis(5));
    let mut watch = election.observe().await.unwrap();
    assert_eq!(watch.leader(), None);
    let leadership = theirs.election(NAME).unwrap().campaign("a").await.unwrap();
    assert_eq!(next(&mut watch).await.as_deref(), Some("a"));
    let leader = watch.leader().unwrap();
    assert_eq!((leader.token, leader.pid), (leadership.term(), Some(std::process::id())));
    assert!(leader.since.is_some());
    let mut clone = watch.clone();
    drop(watch);
    leadership.resign().await.unwrap();
    assert_eq!((next(&mut clone).await, clone.leader()), (None, None));
}

#[tokio::test]
async fn a_watch_outlives_an_outage_and_ends_with_the_client() {
    let server = MemoryServer::new();
    let (ours, theirs) = (server.client().unwrap(), server.client().unwrap());
    let election = ours.election(NAME).unwrap().with_interval(Duration::from_millis(5));
    let mut watch = election.observe().await.unwrap();
    server.faults().sever();
    assert!(election.observe().await.is_err_and(|error| error.kind() == ErrorKind::Unreachable));
    tokio::time::sleep(Duration::from_millis(20)).await;
    server.faults().heal();
    let leadership = theirs.election(NAME).unwrap().campaign("a").await.unwrap();
    assert_eq!(next(&mut watch).await.as_deref(), Some("a"));
    ours.close(SOON).await.unwrap();
    let ended = tokio::time::timeout(SOON, watch.changed()).await.expect("the end of the watch");
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
    assert!(watch.leader().is_some(), "the last that it knew");
    let never = theirs.election(NAME).unwrap().with_interval(Duration::ZERO).observe().await;
    assert_eq!(never.unwrap_err().kind(), ErrorKind::InvalidOption);
    leadership.resign().await.unwrap();
}

#[tokio::test]
async fn a_body_runs_while_it_leads_and_its_end_is_the_resignation() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let election = client.election(NAME).unwrap().with_value("a");
    let watch = local_watch(&client).await;
    let led = election.run(async |leading| {
        eventually("it is seen", || value(watch.leader()).as_deref() == Some("a")).await;
        leading.term()
    });
    assert!(tokio::time::timeout(SOON, led).await.unwrap().unwrap().is_some());
    assert!(server.is_empty());
}

/// Counts itself out when it is dropped.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn begin(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_loss_stops_the_body_and_the_candidate_runs_again() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let (running, begun) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (inside, times) = (Arc::clone(&running), Arc::clone(&begun));
    let election = client.election(NAME).unwrap();
    let task = tokio::spawn(async move {
        let led = election.run(async |_| {
            let _running = Running::begin(&inside);
            if times.fetch_add(1, Ordering::SeqCst) < 2 {
                std::future::pending::<()>().await;
            }
            "done"
        });
        led.await
    });
    for round in 1..=2 {
        eventually("it leads", || begun.load(Ordering::SeqCst) == round).await;
        assert_eq!(running.load(Ordering::SeqCst), 1);
        assert!(server.lose(&name(NAME), Loss::Expire, Told::AtOnce));
        eventually("it stops", || {
            running.load(Ordering::SeqCst) == 0 || begun.load(Ordering::SeqCst) > round
        })
        .await;
    }
    let done = tokio::time::timeout(SOON, task).await.expect("it leads again").unwrap();
    assert_eq!((done.unwrap(), begun.load(Ordering::SeqCst)), ("done", 3));
    assert!(server.is_empty());
}

#[tokio::test]
async fn a_candidate_that_never_leads_runs_no_body() {
    let server = MemoryServer::new();
    let (ours, theirs) = (server.client().unwrap(), server.client().unwrap());
    let _held = theirs.election(NAME).unwrap().campaign("b").await.unwrap();
    let election = ours.election(NAME).unwrap();
    let waiting = ByHand::begun(election.run(async |_| panic!("it does not lead")));
    assert_eq!(server.waiting_for(&name(NAME)), 1);
    drop(waiting);
    ours.idle().await;
    assert_eq!(server.waiting_for(&name(NAME)), 0);
}

/// Notes how many bodies run when the lock is released.
struct AtRelease {
    running: Arc<AtomicUsize>,
    seen: Arc<AtomicUsize>,
}

impl LockListener for AtRelease {
    fn on_abort(&self, _: &Hold, _: &LossReason) {}

    fn on_released(&self, _: &Hold) {
        self.seen.store(self.running.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

#[tokio::test]
async fn the_body_is_gone_before_the_resignation() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let running = Arc::new(AtomicUsize::new(0));
    let seen = Arc::new(AtomicUsize::new(usize::MAX));
    let (inside, at_release) = (Arc::clone(&running), Arc::clone(&seen));
    let lock = client.mutex(NAME).unwrap();
    lock.add_listener(Arc::new(AtRelease { running, seen: at_release })).detach();
    let election = client.election(NAME).unwrap();
    let mut leading = ByHand::begun(election.run(async |_| {
        let _running = Running::begin(&inside);
        std::future::pending::<()>().await;
    }));
    assert!(leading.poll().is_none());
    drop(leading);
    eventually("it resigns", || seen.load(Ordering::SeqCst) == 0).await;
    client.idle().await;
    assert!(server.is_empty());
}

#[tokio::test]
async fn an_error_that_stays_ends_the_run() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let denied = LockError::new(ErrorKind::Denied, Operation::Acquire);
    server.faults().inject(Operation::Acquire, Fault::Fail(denied));
    let error = client.election(NAME).unwrap().run(async |_| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
}

const MOST_POLLS: usize = 16;

/// A server whose replies come later, and one whose request or reply for `slow` waits until after the drop.
async fn at_every_poll(slow: &[Operation], operation: impl AsyncFn(&LockClient, usize) -> bool) {
    let faults: [fn(Gate) -> Fault; 2] = [Fault::Delay, Fault::DelayReply];
    let slow = slow.iter().flat_map(|slow| faults.map(|fault| Some((*slow, fault))));
    for behaviour in std::iter::once(None).chain(slow) {
        for polls in 0..MOST_POLLS {
            let case = format!("{:?}, dropped after {polls} polls", behaviour.map(|(slow, _)| slow));
            let server = MemoryServer::new();
            let options = MemoryOptions::new().replies(Replies::Later);
            let client = server.client_with(options, ClientBuilder::new()).unwrap();
            let gate = Gate::new();
            if let Some((slow, fault)) = behaviour {
                server.faults().inject(slow, fault(gate.clone()));
            }
            let limited = tokio::time::timeout(Duration::from_millis(20), operation(&client, polls));
            let is_over = limited.await.unwrap_or(true);
            gate.open();
            tokio::time::timeout(SOON, client.idle()).await.unwrap_or_else(|_| panic!("{case}: never idle"));
            assert!(server.is_empty(), "{case}: something is left");
            client.election(NAME).unwrap().campaign("b").await.unwrap().resign().await.unwrap();
            if is_over {
                break;
            }
            assert!(polls + 1 < MOST_POLLS, "{case}: it never completes");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_that_is_dropped_leaves_nothing() {
    at_every_poll(&[Operation::Acquire], async |client, polls| {
        DropAfter::new(polls, client.election(NAME).unwrap().campaign("a")).await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proclamation_that_is_dropped_leaves_nothing() {
    at_every_poll(&[Operation::Describe], async |client, polls| {
        let leadership = client.election(NAME).unwrap().campaign("a").await.unwrap();
        DropAfter::new(polls, leadership.proclaim("b")).await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resignation_that_is_dropped_resigns() {
    at_every_poll(&[Operation::Release], async |client, polls| {
        let leadership = client.election(NAME).unwrap().campaign("a").await.unwrap();
        DropAfter::new(polls, leadership.resign()).await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_dropped_leaves_nothing() {
    at_every_poll(&[Operation::Acquire, Operation::Release], async |client, polls| {
        let election = client.election(NAME).unwrap().with_value("a");
        DropAfter::new(polls, election.run(async |_| tokio::task::yield_now().await)).await.is_some()
    })
    .await;
}

/// Its next look is an hour away.
#[tokio::test]
async fn those_that_wait_for_a_change_learn_of_the_end_of_the_client() {
    let client = MemoryServer::new().client().unwrap();
    let (mut leader, mut locks) = (local_watch(&client).await, client.watch(HOUR));
    let _leadership = client.election(NAME).unwrap().campaign("a").await.unwrap();
    assert_eq!(next(&mut leader).await.as_deref(), Some("a"));
    assert_eq!(locks.changes().await.unwrap().len(), 1);
    let changed = async { (leader.changed().await, locks.changes().await) };
    let both = async { tokio::join!(changed, client.close(Duration::ZERO)) };
    let (changed, closed) = tokio::time::timeout(SOON, both).await.expect("the end");
    drop(closed);
    assert_eq!(changed.0.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(changed.1.unwrap_err().kind(), ErrorKind::Closed);
}
