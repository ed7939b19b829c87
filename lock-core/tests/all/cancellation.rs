//! Drops every future at every await, and checks that nothing is held, queued or leaked.
//!
//! Each operation is polled N times and then dropped, for N = 0, 1, 2 … until it completes. The server's replies come
//! immediately, later, or are held up before or after the server carries out the request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{DropAfter, SOON, name};
use lock_core::{
    ClientBuilder, DistributedLock, EngineChoice, ErrorKind, LockClient, LockError, Operation, Owner,
};
use lock_memory::faults::{Fault, Gate};
use lock_memory::{MemoryOptions, MemoryServer, Replies};

const NAME: &str = "orders/42";

/// How the server behaves while an operation is dropped.
#[derive(Debug, Clone, Copy)]
enum Server {
    Prompt,
    Remote,
    /// The request waits before the server carries it out, which happens after the drop.
    SlowRequest(Operation),
    /// The server carries out the request, and the reply waits until after the drop.
    SlowReply(Operation),
    /// Another client holds the lock, and releases it after the drop.
    HeldByAnother,
}

struct World {
    server: MemoryServer,
    client: LockClient,
    lock: Arc<dyn DistributedLock>,
    gate: Gate,
    stranger: Option<lock_core::LockGuard>,
}

impl World {
    /// Creates a lock at a server that behaves as described. The lock is free, or held by this task if `Held` says so.
    async fn new(engine: EngineChoice, behaviour: Server, held: Held) -> Self {
        let server = MemoryServer::new();
        let replies = if matches!(behaviour, Server::Prompt) { Replies::AtOnce } else { Replies::Later };
        let builder = ClientBuilder::new().engine(engine);
        let client = server.client_with(MemoryOptions::new().replies(replies), builder).unwrap();
        let lock = client.mutex(NAME).unwrap();
        if matches!(held, Held::ByThisTask) {
            lock.lock().await.unwrap();
        }
        let gate = Gate::new();
        let mut stranger = None;
        match behaviour {
            Server::SlowRequest(operation) => server.faults().inject(operation, Fault::Delay(gate.clone())),
            Server::SlowReply(operation) => {
                server.faults().inject(operation, Fault::DelayReply(gate.clone()));
            }
            Server::HeldByAnother => {
                stranger = Some(server.client().unwrap().mutex(NAME).unwrap().acquire().await.unwrap());
            }
            Server::Prompt | Server::Remote => {}
        }
        Self { server, client, lock, gate, stranger }
    }

    /// Lets all work that is under way finish, and checks that nothing is left.
    async fn assert_nothing_is_left(mut self, what: &str) {
        self.gate.open();
        if let Some(stranger) = self.stranger.take() {
            stranger.release().await.unwrap();
        }
        tokio::time::timeout(SOON, self.client.idle()).await.unwrap_or_else(|_| panic!("{what}: never idle"));
        assert_eq!(self.server.waiting_for(&name(NAME)), 0, "{what}: queued");
        assert!(!self.lock.is_locked(), "{what}: held locally");
        assert!(self.server.is_empty(), "{what}: held at the server");
        // The lock works: it is neither closed nor held by a lost owner.
        let guard = tokio::time::timeout(SOON, self.lock.acquire()).await;
        guard
            .unwrap_or_else(|_| panic!("{what}: the next one waits for ever"))
            .unwrap()
            .release()
            .await
            .unwrap();
        self.client.close(SOON).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

#[derive(Clone, Copy)]
enum Held {
    ByNobody,
    ByThisTask,
}

/// The maximum number of polls. Woken futures complete in far fewer.
const MOST_POLLS: usize = 12;

/// Runs `operation` for every number of polls and every behaviour; it returns whether it completed.
async fn at_every_poll(
    what: &str,
    held: Held,
    behaviours: &[Server],
    operation: impl AsyncFn(&World, usize) -> Completed,
) {
    let engines = [EngineChoice::Own, EngineChoice::Caller];
    for (engine, behaviour) in
        engines.iter().flat_map(|engine| behaviours.iter().map(move |it| (*engine, it)))
    {
        for polls in 0..MOST_POLLS {
            let world = World::new(engine, *behaviour, held).await;
            // Some behaviours keep the operation pending for ever: then a timeout ends the last poll.
            let limited = tokio::time::timeout(Duration::from_millis(20), operation(&world, polls));
            let completed = limited.await.unwrap_or(Completed::Never);
            let case = format!("{what}, {engine:?}, {behaviour:?}, dropped after {polls} polls");
            if matches!(held, Held::ByThisTask) && world.lock.is_held() {
                // Without a poll, it changed nothing.
                assert_eq!(polls, 0, "{case}");
                world.gate.open();
                world.lock.unlock().await.unwrap();
            }
            world.assert_nothing_is_left(&case).await;
            if completed != Completed::No {
                break;
            }
            assert!(polls + 1 < MOST_POLLS, "{case}: it never completes");
        }
    }
}

#[derive(Debug, PartialEq)]
enum Completed {
    Yes,
    No,
    Never,
}

fn completed<T>(output: Option<&T>) -> Completed {
    if output.is_some() { Completed::Yes } else { Completed::No }
}

const ACQUIRING: [Server; 5] = [
    Server::Prompt,
    Server::Remote,
    Server::SlowRequest(Operation::Acquire),
    Server::SlowReply(Operation::Acquire),
    Server::HeldByAnother,
];

const RELEASING: [Server; 4] = [
    Server::Prompt,
    Server::Remote,
    Server::SlowRequest(Operation::Release),
    Server::SlowReply(Operation::Release),
];

#[tokio::test(flavor = "multi_thread")]
async fn lock() {
    at_every_poll("lock", Held::ByNobody, &ACQUIRING, async |world, polls| {
        let output = DropAfter::new(polls, world.lock.lock()).await;
        if let Some(Ok(())) = output {
            world.lock.unlock().await.unwrap();
        }
        completed(output.as_ref())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn try_lock_for() {
    at_every_poll("try_lock_for", Held::ByNobody, &ACQUIRING, async |world, polls| {
        let output = DropAfter::new(polls, world.lock.try_lock_for(SOON)).await;
        if let Some(Ok(true)) = output {
            world.lock.unlock().await.unwrap();
        }
        completed(output.as_ref())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire() {
    at_every_poll("acquire", Held::ByNobody, &ACQUIRING, async |world, polls| {
        completed(DropAfter::new(polls, world.lock.acquire()).await.as_ref())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unlock() {
    at_every_poll("unlock", Held::ByThisTask, &RELEASING, async |world, polls| {
        completed(DropAfter::new(polls, world.lock.unlock()).await.as_ref())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn release() {
    at_every_poll("release", Held::ByNobody, &RELEASING, async |world, polls| {
        let guard = world.lock.acquire().await.unwrap();
        completed(DropAfter::new(polls, guard.release()).await.as_ref())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_lock() {
    at_every_poll("with_lock", Held::ByNobody, &ACQUIRING, async |world, polls| {
        let lock = Arc::clone(&world.lock);
        let body = async |_| {
            lock.lock().await.unwrap();
            tokio::task::yield_now().await;
            Ok::<_, LockError>(())
        };
        completed(DropAfter::new(polls, world.lock.with_lock(body)).await.as_ref())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_waits_that_end_at_the_moment_of_the_grant_leave_nothing() {
    let server = MemoryServer::new();
    let client =
        server.client_with(MemoryOptions::new().replies(Replies::Later), ClientBuilder::new()).unwrap();
    let lock = client.mutex(NAME).unwrap();
    for round in 0..1000_u64 {
        let held = lock.acquire_as(Owner::new(), lock_core::Wait::Forever).await.unwrap().unwrap();
        let waiting = Arc::clone(&lock);
        let waiting = tokio::spawn(async move {
            let since = Instant::now();
            match waiting.try_acquire_for(Duration::from_micros(1 + round % 100)).await {
                Ok(_) => {}
                // The server gets one second for its first answer, and may be slower on an overloaded machine.
                Err(error) => {
                    assert!(since.elapsed() >= Duration::from_secs(1), "{error} after {:?}", since.elapsed());
                    assert_eq!(error.kind(), ErrorKind::Unreachable);
                }
            }
        });
        tokio::task::yield_now().await;
        drop(held);
        tokio::time::timeout(SOON, waiting).await.expect("decided, one way or the other").unwrap();
    }
    client.idle().await;
    assert!(server.is_empty());
}
