//! Tests distlock together with Apache Curator's locks, on the same path of one real server.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]

#[path = "curator/sharing.rs"]
mod sharing;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex as StdMutex, Weak};
use std::time::{Duration, Instant};

use distlock::{LockClient, LockGuard};
use test_servers::{CuratorHold, CuratorLock, CuratorPeer, ZooKeeperServer, left_out};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

/// Long enough for the heartbeats of a busy machine, short enough to wait for its end.
const SESSION: Duration = Duration::from_secs(30);

/// How long any step that has to happen may take. The value is generous: it costs time only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(120);

const LOOK_EVERY: Duration = Duration::from_millis(10);

const NAME: &str = "door";
const PATH: &str = "/locks/door";

static SERVER: Mutex<Weak<ZooKeeperServer>> = Mutex::const_new(Weak::new());

/// A part of the server that no other test uses: its own directory below the root.
struct Stage {
    server: Arc<ZooKeeperServer>,
    root: String,
}

impl Stage {
    /// Returns `None` when the user has left out ZooKeeper or Curator.
    async fn new(test: &str) -> Option<Self> {
        if left_out("zookeeper").or_else(|| left_out("curator")).is_some() {
            return None;
        }
        let mut running = SERVER.lock().await;
        let server = match running.upgrade() {
            Some(server) => server,
            None => Arc::new(ZooKeeperServer::start().await.unwrap()),
        };
        *running = Arc::downgrade(&server);
        Some(Self { server, root: format!("/{test}") })
    }

    fn path(&self) -> String {
        format!("{}{PATH}", self.root)
    }

    fn url(&self) -> String {
        let session = format!("{}s", SESSION.as_secs());
        let root = format!("{}/locks", self.root);
        self.server.url_of(&[self.server.address()], &root, &[("session_timeout", &session)])
    }

    async fn ours(&self) -> LockClient {
        distlock::connect(self.url()).await.unwrap()
    }

    async fn curator(&self) -> Arc<CuratorPeer> {
        let address = self.server.plain_address().to_string();
        Arc::new(CuratorPeer::connected_to(&address, SESSION).await.unwrap())
    }

    /// Returns the nodes of all contenders, beginning with the holder of the lock. An exclusive attempt of ours has another node for
    /// Curator's read-write lock.
    async fn contenders(&self) -> Vec<String> {
        let mut nodes = self.nodes().await;
        nodes.retain(|name| name.contains("lock-"));
        nodes
    }

    async fn nodes(&self) -> Vec<String> {
        self.server.children(&self.path()).await.unwrap().unwrap_or_default()
    }

    /// Waits until the lock has this many holders and waiters.
    async fn contended(&self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let contenders = self.contenders().await;
            if contenders.len() == count {
                return;
            }
            assert!(Instant::now() < deadline, "{count} contenders were expected: {contenders:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Returns which side each node belongs to, in order.
    async fn sides(&self) -> Vec<Side> {
        let mut sides = Vec::new();
        for contender in self.contenders().await {
            let node = self.server.node(&format!("{}/{contender}", self.path())).await.unwrap().unwrap();
            // Curator writes the address of its machine into a node.
            sides.push(if node.data.starts_with(b"{") { Side::Ours } else { Side::Curators });
        }
        sides
    }

    async fn nothing_is_left(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let nodes = self.nodes().await;
            if nodes.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{nodes:?} is left");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Ours,
    Curators,
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(PATIENCE, future).await;
    assert!(done.is_ok(), "{what}: not within {PATIENCE:?}");
    done.unwrap()
}

/// Acquires the lock in a task.
fn wanting(client: &LockClient) -> JoinHandle<LockGuard> {
    let lock = client.mutex(NAME).unwrap();
    tokio::spawn(async move { lock.acquire().await.unwrap() })
}

#[tokio::test]
async fn the_lock_goes_from_one_side_to_the_other_and_back() {
    let Some(stage) = Stage::new("back-and-forth").await else { return };
    let (ours, curator) = (stage.ours().await, stage.curator().await);
    let mut guard = ours.mutex(NAME).unwrap().acquire().await.unwrap();
    for _ in 0..5 {
        let none = curator
            .acquire_within(CuratorLock::Mutex, &stage.path(), Duration::from_millis(1))
            .await
            .unwrap();
        assert!(none.is_none(), "both hold the lock");
        stage.contended(1).await;
        let token = guard.token().unwrap();
        let acquiring = {
            let (curator, path) = (Arc::clone(&curator), stage.path());
            tokio::spawn(async move { curator.acquire(CuratorLock::Mutex, &path).await.unwrap() })
        };
        stage.contended(2).await;
        guard.release().await.unwrap();
        let hold = soon("Curator's turn", acquiring).await.unwrap();
        assert!(ours.mutex(NAME).unwrap().try_acquire().await.unwrap().is_none(), "both hold the lock");
        let waiting = wanting(&ours);
        stage.contended(2).await;
        curator.release(hold).await.unwrap();
        guard = soon("our turn", waiting).await.unwrap();
        assert!(guard.token().unwrap() > token, "tokens rise, also with another holder in between");
    }
    guard.release().await.unwrap();
    stage.nothing_is_left().await;
}

/// Campaigns with Curator's `LeaderSelector`, in a task.
fn curator_campaigns(curator: &Arc<CuratorPeer>, path: String) -> JoinHandle<CuratorHold> {
    let curator = Arc::clone(curator);
    tokio::spawn(async move { curator.lead(&path).await.unwrap() })
}

#[tokio::test]
async fn a_leader_and_curators_leader_selector_exclude_each_other() {
    let Some(stage) = Stage::new("election").await else { return };
    let (ours, curator) = (stage.ours().await, stage.curator().await);
    let election = ours.election(NAME).unwrap();
    let mut leadership = election.campaign("a").await.unwrap();
    for round in 0..3 {
        let campaigning = curator_campaigns(&curator, stage.path());
        stage.contended(2).await;
        leadership.proclaim("b").await.unwrap();
        assert_eq!(stage.sides().await, [Side::Ours, Side::Curators]);
        assert!(!campaigning.is_finished() && leadership.is_leading(), "both lead in round {round}");
        let term = leadership.term();
        leadership.resign().await.unwrap();

        let leading = soon("Curator's turn", campaigning).await.unwrap();
        let leader = election.observe().await.unwrap().leader().unwrap();
        assert_eq!(leader.value, None, "Curator gives no value");
        assert!(
            ours.mutex(NAME).unwrap().try_acquire().await.unwrap().is_none(),
            "Curator's leader has the lock"
        );
        let ours_campaigns = {
            let election = election.clone();
            tokio::spawn(async move { election.campaign("c").await.unwrap() })
        };
        stage.contended(2).await;
        assert_eq!(stage.sides().await, [Side::Curators, Side::Ours]);
        assert!(!ours_campaigns.is_finished(), "both lead in round {round}");
        curator.release(leading).await.unwrap();
        leadership = soon("our turn", ours_campaigns).await.unwrap();
        assert!(leadership.term() > term);
    }
    leadership.resign().await.unwrap();
    stage.nothing_is_left().await;
}

#[tokio::test]
async fn a_killed_leader_of_curators_is_followed_by_our_candidate_when_its_session_ends() {
    let Some(stage) = Stage::new("killed-leader").await else { return };
    let (ours, curator) = (stage.ours().await, stage.curator().await);
    let _leading = soon("Curator's turn", curator_campaigns(&curator, stage.path())).await.unwrap();
    let election = ours.election(NAME).unwrap();
    let campaigning = tokio::spawn(async move { election.campaign("a").await.unwrap() });
    stage.contended(2).await;
    let killed = Instant::now();
    curator.kill().unwrap();
    let leadership = soon("our turn", campaigning).await.unwrap();
    assert!(killed.elapsed() >= LIVES_ON, "after {:?} its session cannot have ended", killed.elapsed());
    leadership.resign().await.unwrap();
    stage.nothing_is_left().await;
}

#[tokio::test]
async fn both_sides_stand_in_one_queue() {
    let Some(stage) = Stage::new("queue").await else { return };
    let curator = stage.curator().await;
    let holder = stage.ours().await;
    let guard = holder.mutex(NAME).unwrap().acquire().await.unwrap();
    let served = Arc::new(StdMutex::new(Vec::new()));
    let mut waiters: Vec<JoinHandle<()>> = Vec::new();
    for number in 0..8 {
        let (served, path) = (Arc::clone(&served), stage.path());
        waiters.push(if number % 2 == 0 {
            let curator = Arc::clone(&curator);
            tokio::spawn(async move {
                let hold = curator.acquire(CuratorLock::Mutex, &path).await.unwrap();
                served.lock().unwrap().push(number);
                curator.release(hold).await.unwrap();
            })
        } else {
            // A client for each waiter: the waiters of one client share an attempt.
            let client = stage.ours().await;
            tokio::spawn(async move {
                let guard = client.mutex(NAME).unwrap().acquire().await.unwrap();
                served.lock().unwrap().push(number);
                guard.release().await.unwrap();
            })
        });
        stage.contended(number + 2).await;
    }
    let mut expected = vec![Side::Ours];
    expected.extend([Side::Curators, Side::Ours].repeat(4));
    assert_eq!(stage.sides().await, expected);
    let status = holder.status(NAME).await.unwrap();
    assert_eq!((status.holders.len(), status.waiters.len()), (1, 8), "{status:?}");

    guard.release().await.unwrap();
    for waiter in waiters {
        soon("a waiter's turn", waiter).await.unwrap();
    }
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    stage.nothing_is_left().await;
}

const ROUNDS: u32 = 40;

/// Adds one to the number in a file; only a lock protects it.
async fn increment(file: &Path) {
    let number: u32 = fs::read_to_string(file).unwrap().trim().parse().unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    fs::write(file, (number + 1).to_string()).unwrap();
}

async fn count(client: LockClient, file: &Path) {
    let lock = client.mutex(NAME).unwrap();
    for _ in 0..ROUNDS {
        let guard = lock.acquire().await.unwrap();
        increment(file).await;
        guard.release().await.unwrap();
    }
}

async fn curator_counts(curator: &CuratorPeer, path: &str, file: &Path) {
    for _ in 0..ROUNDS {
        let hold = curator.acquire(CuratorLock::Mutex, path).await.unwrap();
        increment(file).await;
        curator.release(hold).await.unwrap();
    }
}

#[tokio::test]
async fn what_both_sides_count_without_a_guard_is_right() {
    let Some(stage) = Stage::new("counter").await else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("number");
    fs::write(&file, "0").unwrap();
    let (one, other) = (stage.ours().await, stage.ours().await);
    let (curator, another) = tokio::join!(stage.curator(), stage.curator());
    let path = stage.path();
    tokio::join!(
        count(one, &file),
        count(other, &file),
        curator_counts(&curator, &path, &file),
        curator_counts(&another, &path, &file),
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), (4 * ROUNDS).to_string());
    stage.nothing_is_left().await;
}

/// The minimum time that a session outlives its client, whose last message is no older than a third of the timeout.
const LIVES_ON: Duration = Duration::from_secs(15);

#[tokio::test]
async fn a_killed_holder_of_curators_is_followed_by_us_when_its_session_ends() {
    let Some(stage) = Stage::new("killed-curator").await else { return };
    let (ours, curator) = (stage.ours().await, stage.curator().await);
    let _hold = curator.acquire(CuratorLock::Mutex, &stage.path()).await.unwrap();
    let waiting = wanting(&ours);
    stage.contended(2).await;
    let killed = Instant::now();
    curator.kill().unwrap();
    let guard = soon("our turn", waiting).await.unwrap();
    assert!(killed.elapsed() >= LIVES_ON, "after {:?} its session cannot have ended", killed.elapsed());
    assert_eq!(stage.sides().await, [Side::Ours]);
    guard.release().await.unwrap();
    stage.nothing_is_left().await;
}

#[tokio::test]
async fn a_killed_holder_of_ours_is_followed_by_curator_when_its_session_ends() {
    let Some(stage) = Stage::new("killed-holder").await else { return };
    let curator = stage.curator().await;
    let mut holder = OurProcess::start(&stage);
    holder.says("acquired").await;
    let acquiring = {
        let (curator, path) = (Arc::clone(&curator), stage.path());
        tokio::spawn(async move { curator.acquire(CuratorLock::Mutex, &path).await.unwrap() })
    };
    stage.contended(2).await;
    let killed = Instant::now();
    holder.kill().await;
    let hold = soon("Curator's turn", acquiring).await.unwrap();
    assert!(killed.elapsed() >= LIVES_ON, "after {:?} its session cannot have ended", killed.elapsed());
    assert_eq!(stage.sides().await, [Side::Curators]);
    curator.release(hold).await.unwrap();
    stage.nothing_is_left().await;
}

#[tokio::test]
async fn a_killed_waiter_of_curators_between_two_of_ours_blocks_no_other_for_ever() {
    let Some(stage) = Stage::new("killed-waiter").await else { return };
    let (first, second, curator) = (stage.ours().await, stage.ours().await, stage.curator().await);
    let guard = first.mutex(NAME).unwrap().acquire().await.unwrap();
    let between = {
        let (curator, path) = (Arc::clone(&curator), stage.path());
        tokio::spawn(async move { curator.acquire(CuratorLock::Mutex, &path).await })
    };
    stage.contended(2).await;
    let waiting = wanting(&second);
    stage.contended(3).await;
    assert_eq!(stage.sides().await, [Side::Ours, Side::Curators, Side::Ours]);
    curator.kill().unwrap();
    assert!(soon("the end of Curator", between).await.unwrap().is_err());
    guard.release().await.unwrap();
    let guard = soon("our turn", waiting).await.unwrap();
    assert_eq!(stage.sides().await, [Side::Ours]);
    guard.release().await.unwrap();
    stage.nothing_is_left().await;
}

#[tokio::test]
async fn a_killed_waiter_of_ours_between_two_of_curators_blocks_no_other_for_ever() {
    let Some(stage) = Stage::new("killed-between").await else { return };
    let (first, second) = tokio::join!(stage.curator(), stage.curator());
    let hold = first.acquire(CuratorLock::Mutex, &stage.path()).await.unwrap();
    let mut between = OurProcess::start(&stage);
    stage.contended(2).await;
    let acquiring = {
        let (curator, path) = (Arc::clone(&second), stage.path());
        tokio::spawn(async move { curator.acquire(CuratorLock::Mutex, &path).await.unwrap() })
    };
    stage.contended(3).await;
    assert_eq!(stage.sides().await, [Side::Curators, Side::Ours, Side::Curators]);
    between.kill().await;
    first.release(hold).await.unwrap();
    let hold = soon("Curator's turn", acquiring).await.unwrap();
    assert_eq!(stage.sides().await, [Side::Curators]);
    second.release(hold).await.unwrap();
    stage.nothing_is_left().await;
}

const URL: &str = "DISTLOCK_TEST_ACQUIRES_AT";

/// Not a test by itself: other tests start it as a process, and kill it.
#[tokio::test]
async fn acquires_on_request() {
    let Ok(url) = std::env::var(URL) else { return };
    let client = distlock::connect(url).await.unwrap();
    let guard = client.mutex(NAME).unwrap().acquire().await.unwrap();
    println!("\nacquired");
    // Ends with the process that started it.
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// A process that acquires the lock with our client, and keeps it. Dropping this ends the process.
struct OurProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl OurProcess {
    fn start(stage: &Stage) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "acquires_on_request", "--nocapture"])
            .env(URL, stage.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn says(&mut self, word: &str) {
        let said = async { while self.lines.next_line().await.unwrap().unwrap() != word {} };
        soon(word, said).await;
    }

    /// Uses a signal that it cannot catch.
    async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}
