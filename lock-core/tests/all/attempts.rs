//! Tests of what a client asks of a server, and in which order, with a server whose answers the test gives one by one.

mod beside;

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::support::{ByHand, Recorder, SOON, Told, eventually, next};
use lock_core::{
    AcquireRequest, Backend, BackendContext, Capabilities, CharacterSet, ClientBuilder, Clock,
    DistributedLock, Downgraded, EngineChoice, ErrorKind, Grant, GroupId, HolderId, LeaseState, LockClient,
    LockError, LockGuard, LockOptions, LossReason, ManualClock, Memo, Mode, NameRules, Operation, Owner,
    Participant, Reach, Recall, Released, Remembered, Term, Wait,
};
use tokio::sync::oneshot;

const NAME: &str = "orders/42";
const LEASE: Duration = Duration::from_secs(60);
const GROUP: GroupId = GroupId::new(0);

/// What the client has asked for, and how it is answered.
enum Asked {
    Acquire(AcquireRequest, oneshot::Sender<Result<Option<Grant<()>>, LockError>>),
    Cancel(oneshot::Sender<()>),
    Release(oneshot::Sender<Result<Released, LockError>>),
    Downgrade(oneshot::Sender<Result<Downgraded<()>, LockError>>),
    Remember(oneshot::Sender<Result<Remembered, LockError>>),
    Recall(oneshot::Sender<Result<Option<Duration>, LockError>>),
}

#[derive(Debug)]
struct Remote {
    capabilities: Capabilities,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl std::fmt::Debug for Asked {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Acquire(..) => "acquire",
            Self::Cancel(_) => "cancel",
            Self::Release(_) => "release",
            Self::Downgrade(_) => "downgrade",
            Self::Remember(_) => "remember",
            Self::Recall(_) => "recall",
        })
    }
}

impl Remote {
    async fn ask<T>(&self, asked: impl FnOnce(oneshot::Sender<T>) -> Asked) -> T {
        let (answer, answered) = oneshot::channel();
        self.asked.lock().unwrap().push(asked(answer));
        match answered.await {
            Ok(answer) => answer,
            // The test has no more to say.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Backend for Remote {
    type Lease = ();

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<()>>, LockError> {
        self.ask(|answer| Asked::Acquire(request.clone(), answer)).await
    }

    async fn cancel(&self, _: &AcquireRequest) -> Result<(), LockError> {
        self.ask(Asked::Cancel).await;
        Ok(())
    }

    async fn renew(&self, _: GroupId, leases: &[Arc<()>]) -> Result<Vec<LeaseState>, LockError> {
        Ok(vec![LeaseState::Held; leases.len()])
    }

    async fn release(&self, (): &()) -> Result<Released, LockError> {
        self.ask(Asked::Release).await
    }

    async fn downgrade(&self, (): &(), _: &AcquireRequest) -> Result<Downgraded<()>, LockError> {
        self.ask(Asked::Downgrade).await
    }

    async fn remember(&self, _: &Memo, _: Duration) -> Result<Remembered, LockError> {
        self.ask(Asked::Remember).await
    }

    async fn recall(&self, _: &Memo, recall: Recall) -> Result<Option<Duration>, LockError> {
        assert_eq!(recall, Recall::Look);
        self.ask(Asked::Recall).await
    }

    async fn ping(&self) -> Result<(), LockError> {
        Ok(())
    }
}

struct World {
    client: LockClient,
    context: BackendContext,
    asked: Arc<Mutex<Vec<Asked>>>,
    clock: Clock,
    time: ManualClock,
}

impl World {
    /// A client whose work goes on only while the test lets it.
    fn new() -> Self {
        Self::with(|capabilities| capabilities)
    }

    fn pipelining() -> Self {
        Self::with(Capabilities::with_pipelining)
    }

    fn with(change: impl FnOnce(Capabilities) -> Capabilities) -> Self {
        let (clock, time) = Clock::manual();
        time.advance(Duration::from_secs(100));
        let (asked, mut context) = (Arc::default(), None);
        let builder = ClientBuilder::new().clock(clock.clone()).engine(EngineChoice::Caller);
        let builder = builder.abort_margin(Duration::from_secs(1));
        let client = builder.build(|given| {
            context = Some(given);
            let names = NameRules::new(CharacterSet::ANY, 100);
            let capabilities = Capabilities::new("answered by hand", Reach::Network, names);
            let capabilities = change(capabilities.with_shared().with_remembering());
            Ok(Remote { capabilities, asked: Arc::clone(&asked) })
        });
        Self { client: client.unwrap(), context: context.unwrap(), asked, clock, time }
    }

    /// Returns what has been asked since the last time.
    async fn asked(&self) -> Vec<Asked> {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// Returns the only thing that has been asked since the last time.
    async fn only(&self) -> Asked {
        let mut asked = self.asked().await;
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked.remove(0)
    }

    async fn attempt(&self) -> (AcquireRequest, oneshot::Sender<Result<Option<Grant<()>>, LockError>>) {
        match self.only().await {
            Asked::Acquire(request, answer) => (request, answer),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the guards of an owner that writes and reads.
    async fn writer_that_reads(&self) -> (LockGuard, LockGuard) {
        let catalog = self.client.rw_lock(NAME).unwrap();
        let write = catalog.write();
        let writer = ByHand::begun(write.acquire());
        self.attempt().await.1.send(Ok(Some(self.grant()))).unwrap();
        let writer = writer.output().await.unwrap();
        let reader = catalog.read().acquire_as(writer.owner(), Wait::Forever).await.unwrap().unwrap();
        (writer, reader)
    }

    /// Lets the waiter of an attempt find the pause of an earlier holder.
    async fn finds_a_pause(&self, remaining: Duration) {
        self.attempt().await.1.send(Ok(Some(self.grant()))).unwrap();
        let Asked::Remember(answer) = self.only().await else { panic!("it does not begin a pause") };
        answer.send(Ok(Remembered::Already { remaining })).unwrap();
        let Asked::Cancel(done) = self.only().await else { panic!("it keeps the lock") };
        done.send(()).unwrap();
    }

    /// Returns the question whether a pause goes on, which is the only thing that has been asked since the last time.
    async fn looked(&self) -> oneshot::Sender<Result<Option<Duration>, LockError>> {
        match self.only().await {
            Asked::Recall(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn grant(&self) -> Grant<()> {
        self.grant_in(GROUP)
    }

    fn grant_in(&self, group: GroupId) -> Grant<()> {
        Grant::new((), group, Term::Leased { anchor: self.clock.now(), length: LEASE })
    }

    fn within(&self, length: Duration) -> Wait {
        Wait::within(length, self.clock.now())
    }
}

#[tokio::test]
async fn the_server_is_asked_when_a_reader_waits_until_the_attempt_is_queued_and_for_no_writer() {
    let world = World::new();
    let catalog = world.client.rw_lock(NAME).unwrap();
    let (read, write) = (catalog.read(), catalog.write());
    let _first = ByHand::begun(write.acquire());
    let (request, _answer) = world.attempt().await;
    let second = ByHand::begun(write.acquire());
    assert!(!is_asked(&request), "the writer waits for its end");
    drop(second);
    let _reader = ByHand::begun(read.acquire());
    assert!(is_asked(&request));
    drop(ByHand::begun(read.acquire()));
    assert!(!is_asked(&request), "it has been asked");
    assert!(world.asked().await.is_empty());
    request.queued();
    let (reader, _answer) = world.attempt().await;
    assert_eq!(reader.mode(), Mode::Shared);
}

#[tokio::test]
async fn the_error_of_a_wait_names_the_holder_of_its_own_attempt() {
    let world = World::new();
    let lock = world.client.mutex(NAME).unwrap();
    for holder in [Some("the former one"), None] {
        let waits = ByHand::begun(lock.acquire_for(Duration::from_secs(5)));
        let (request, _answer) = world.attempt().await;
        if let Some(holder) = holder {
            request.held_by(Participant::new(HolderId::new(holder)));
        }
        request.queued();
        world.time.advance(Duration::from_secs(5));
        let error = waits.output().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert_eq!(error.to_string().contains("the former one"), holder.is_some(), "{error}");
        let Asked::Cancel(done) = world.only().await else { panic!("it is left at the server") };
        done.send(()).unwrap();
    }
}

/// A server whose answers take two seconds at most is asked three seconds before.
fn answering(capabilities: Capabilities) -> Capabilities {
    capabilities.with_answers_within(Duration::from_secs(2))
}

/// Returns whether the core asks whether the server still has the attempt.
fn is_asked(request: &AcquireRequest) -> bool {
    let asked = std::pin::pin!(request.asked());
    asked.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[tokio::test]
async fn the_server_is_asked_before_each_end_of_a_wait() {
    let world = World::with(answering);
    let lock = world.client.mutex(NAME).unwrap();
    let waits = |length| ByHand::begun(lock.acquire_as(Owner::new(), world.within(length)));
    let first = waits(Duration::from_secs(10));
    let (request, _answer) = world.attempt().await;
    request.queued();
    let second = waits(Duration::from_secs(20));
    let _third = ByHand::begun(lock.acquire());
    world.time.advance(Duration::from_millis(6_999));
    assert!(!is_asked(&request), "the wait does not end soon");
    world.time.advance(Duration::from_millis(1));
    assert!(is_asked(&request));
    request.queued();
    world.time.advance(Duration::from_secs(3));
    assert!(!is_asked(&request), "it has been asked before this end");
    assert!(first.output().await.unwrap().is_none());
    world.time.advance(Duration::from_secs(7));
    assert!(is_asked(&request));
    // The backend has had no answer.
    request.unreachable(LockError::new(ErrorKind::Unreachable, Operation::Acquire).retryable());
    world.time.advance(Duration::from_secs(3));
    assert_eq!(second.output().await.unwrap_err().kind(), ErrorKind::Unreachable);
    world.time.advance(Duration::from_secs(100));
    assert!(!is_asked(&request), "no wait ends that waits for ever");
}

#[tokio::test]
async fn a_wait_whose_question_has_no_answer_is_an_error() {
    let world = World::with(answering);
    let lock = world.client.mutex(NAME).unwrap();
    let waits = ByHand::begun(lock.acquire_as(Owner::new(), world.within(Duration::from_secs(20))));
    let (request, _answer) = world.attempt().await;
    request.queued();
    world.time.advance(Duration::from_secs(17));
    assert!(is_asked(&request));
    world.time.advance(Duration::from_secs(3));
    assert_eq!(waits.output().await.unwrap_err().kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn a_server_that_could_not_be_reached_long_ago_is_asked_before_the_end_of_a_wait() {
    let world = World::with(answering);
    let lock = world.client.mutex(NAME).unwrap();
    let waits = ByHand::begun(lock.acquire_as(Owner::new(), world.within(Duration::from_secs(20))));
    let (request, _answer) = world.attempt().await;
    request.unreachable(LockError::new(ErrorKind::Unreachable, Operation::Acquire).retryable());
    world.time.advance(Duration::from_secs(17));
    assert!(is_asked(&request));
    request.queued();
    world.time.advance(Duration::from_secs(3));
    assert!(waits.output().await.unwrap().is_none());
}

#[tokio::test]
async fn a_short_wait_that_joins_has_the_server_asked_unless_the_last_word_is_fresh() {
    let world = World::with(answering);
    let lock = world.client.mutex(NAME).unwrap();
    let waits = |length| ByHand::begun(lock.acquire_as(Owner::new(), world.within(length)));
    let _head = ByHand::begun(lock.acquire());
    let (request, _answer) = world.attempt().await;
    let _same = waits(Duration::from_secs(1));
    assert!(!is_asked(&request), "its own request asks");
    world.time.advance(Duration::from_millis(500));
    let _before_the_first_word = waits(Duration::from_secs(1));
    assert!(is_asked(&request));
    // The answer counts from when it comes, and not from the question.
    world.time.advance(Duration::from_millis(250));
    request.queued();
    world.time.advance(Duration::from_secs(1));
    let _fresh = waits(Duration::from_secs(2));
    assert!(!is_asked(&request), "the word is one second old");
    world.time.advance(Duration::from_secs(10));
    let _old = waits(Duration::from_secs(1));
    assert!(is_asked(&request));
    let _another = waits(Duration::from_secs(1));
    assert!(!is_asked(&request), "the question is new");
}

#[tokio::test]
async fn the_server_is_asked_for_a_reader_before_its_own_end() {
    let world = World::with(answering);
    let lock = world.client.rw_lock(NAME).unwrap().read();
    let waits = |length| ByHand::begun(lock.acquire_as(Owner::new(), world.within(length)));
    let _first = waits(Duration::from_secs(10));
    let (first, _answer) = world.attempt().await;
    first.queued();
    let _second = waits(Duration::from_secs(20));
    let (second, _answer) = world.attempt().await;
    second.queued();
    world.time.advance(Duration::from_secs(7));
    assert!(is_asked(&first) && !is_asked(&second));
    world.time.advance(Duration::from_secs(10));
    assert!(is_asked(&second));
}

/// The first word may come a second after the wait has begun, however old the attempt is.
#[tokio::test]
async fn a_wait_that_joins_an_attempt_gives_the_server_time_for_its_first_word() {
    for is_answered in [true, false] {
        let world = World::new();
        let lock = world.client.mutex(NAME).unwrap();
        let _head = ByHand::begun(lock.acquire());
        let (request, _answer) = world.attempt().await;
        world.time.advance(Duration::from_secs(10));
        let length = Duration::from_millis(500);
        let waits = ByHand::begun(lock.acquire_as(Owner::new(), world.within(length)));
        world.time.advance(length);
        assert!(!waits.is_woken(), "the server has had no time");
        if is_answered {
            request.busy();
            assert!(waits.output().await.unwrap().is_none());
        } else {
            world.time.advance(Duration::from_millis(499));
            assert!(!waits.is_woken());
            world.time.advance(Duration::from_millis(1));
            assert_eq!(waits.output().await.unwrap_err().kind(), ErrorKind::Unreachable);
        }
    }
}

/// It does not depend on whether it stands at the head of the line.
#[tokio::test]
async fn a_wait_behind_another_wait_ends_as_that_one_would() {
    for is_answered in [true, false] {
        let world = World::new();
        let lock = world.client.mutex(NAME).unwrap();
        let held = ByHand::begun(lock.acquire());
        world.attempt().await.1.send(Ok(Some(world.grant()))).unwrap();
        drop(held.output().await.unwrap());
        let Asked::Release(release) = world.only().await else { panic!("no release") };
        let mut first = ByHand::begun(lock.acquire());
        let length = Duration::from_secs(2);
        let waits = ByHand::begun(lock.acquire_as(Owner::new(), world.within(length)));
        if is_answered {
            release.send(Ok(Released::Clean)).unwrap();
            world.attempt().await.0.queued();
        }
        world.time.advance(length);
        assert!(first.poll().is_none());
        match waits.output().await {
            Ok(outcome) => assert!(is_answered && outcome.is_none(), "nothing is known of another holder"),
            Err(error) => {
                assert!(!is_answered);
                assert_eq!(error.kind(), ErrorKind::Unreachable);
            }
        }
    }
}

#[tokio::test]
async fn a_wait_behind_a_downgrade_without_an_answer_has_failed() {
    let world = World::new();
    let write = world.client.rw_lock(NAME).unwrap().write();
    let (writer, reader) = world.writer_that_reads().await;
    drop(writer);
    let Asked::Downgrade(_answer) = world.only().await else { panic!("no downgrade") };
    let length = Duration::from_millis(500);
    let tried = ByHand::begun(write.try_acquire());
    let short = ByHand::begun(write.acquire_as(Owner::new(), world.within(length)));
    world.time.advance(length);
    assert!(!short.is_woken() && !tried.is_woken(), "the answer is not overdue");
    world.time.advance(length);
    assert_eq!(short.output().await.unwrap_err().kind(), ErrorKind::Unreachable);
    assert_eq!(tried.output().await.unwrap_err().kind(), ErrorKind::Unreachable);
    assert!(reader.hold().is_valid());
}

#[tokio::test]
async fn an_attempt_follows_a_release_only_if_nothing_else_is_unanswered() {
    let world = World::pipelining();
    let lock = world.client.mutex(NAME).unwrap();
    let held = ByHand::begun(lock.acquire());
    world.attempt().await.1.send(Ok(Some(world.grant()))).unwrap();
    let second = ByHand::begun(lock.acquire());
    drop(held.output().await.unwrap());
    let asked: [Asked; 2] = world.asked().await.try_into().unwrap();
    let [Asked::Release(release), Asked::Acquire(..)] = asked else { panic!("{asked:?}") };
    drop(second);
    let Asked::Cancel(cancel) = world.only().await else { panic!("it may have left something") };
    let third = ByHand::begun(lock.acquire());
    assert!(world.asked().await.is_empty(), "it follows an attempt that is not undone");
    cancel.send(()).unwrap();
    let (_, answer) = world.attempt().await;
    answer.send(Ok(Some(world.grant()))).unwrap();
    assert!(world.asked().await.is_empty() && !third.is_woken(), "the release is not answered");
    release.send(Ok(Released::Clean)).unwrap();
    drop(third.output().await.unwrap());
}

#[tokio::test]
async fn a_reader_does_not_follow_a_release_that_is_not_answered() {
    let world = World::pipelining();
    let catalog = world.client.rw_lock(NAME).unwrap();
    let (read, write) = (catalog.read(), catalog.write());
    let held = ByHand::begun(write.acquire());
    world.attempt().await.1.send(Ok(Some(world.grant()))).unwrap();
    drop(held.output().await.unwrap());
    let Asked::Release(release) = world.only().await else { panic!("no release") };
    let reader = ByHand::begun(read.acquire());
    assert!(world.asked().await.is_empty(), "it follows the release");
    release.send(Ok(Released::Clean)).unwrap();
    world.attempt().await.1.send(Ok(Some(world.grant()))).unwrap();
    drop(reader.output().await.unwrap());
}

#[tokio::test]
async fn a_try_behind_the_attempt_of_a_try_takes_its_place() {
    let world = World::new();
    let lock = world.client.mutex(NAME).unwrap();
    let first = ByHand::begun(lock.try_acquire());
    let (request, answer) = world.attempt().await;
    let second = ByHand::begun(lock.try_acquire());
    assert_eq!(request.wait(), Wait::Try);
    drop(first);
    answer.send(Ok(Some(world.grant()))).unwrap();
    assert!(second.output().await.unwrap().is_some(), "it was refused without a word of the server");
    assert!(matches!(world.only().await, Asked::Release(_)));
}

#[tokio::test]
async fn what_a_try_hears_is_no_answer_to_a_wait_that_has_taken_its_place() {
    for is_refused in [true, false] {
        let world = World::new();
        let lock = world.client.mutex(NAME).unwrap();
        let tries = ByHand::begun(lock.try_acquire());
        let (_, answer) = world.attempt().await;
        let mut waits = ByHand::begun(lock.acquire());
        drop(tries);
        assert!(world.asked().await.is_empty(), "the attempt is wanted");
        let failure = LockError::new(ErrorKind::Unreachable, Operation::Acquire).retryable();
        answer.send(if is_refused { Ok(None) } else { Err(failure) }).unwrap();
        let mut asked = world.asked().await;
        if !is_refused {
            let Some(Asked::Cancel(done)) = asked.pop() else { panic!("it may have left something") };
            assert!(asked.is_empty());
            done.send(()).unwrap();
            asked = world.asked().await;
        }
        assert!(waits.poll().is_none(), "the wait has ended with the try");
        let Some(Asked::Acquire(request, answer)) = asked.pop() else { panic!("{asked:?}") };
        assert_eq!(request.wait(), Wait::Forever);
        answer.send(Ok(Some(world.grant()))).unwrap();
        drop(waits.output().await.unwrap());
    }
}

#[tokio::test]
async fn a_try_behind_a_wait_without_contact_fails() {
    let world = World::new();
    let lock = world.client.mutex(NAME).unwrap();
    let _waits = ByHand::begun(lock.acquire());
    let (request, _answer) = world.attempt().await;
    assert!(lock.try_acquire().await.unwrap().is_none(), "a waiter comes before it");
    request.unreachable(LockError::new(ErrorKind::Unreachable, Operation::Acquire).retryable());
    assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Unreachable);
    request.queued();
    assert!(lock.try_acquire().await.unwrap().is_none());
}

/// A grant that no waiter has seen is lost when the time of its wait is up, and then the server is silent.
#[tokio::test]
async fn a_late_wait_whose_grant_is_lost_unseen_ends() {
    let world = World::new();
    let lock = world.client.mutex(NAME).unwrap();
    let length = Duration::from_secs(5);
    let waits = ByHand::begun(lock.acquire_as(Owner::new(), world.within(length)));
    let (request, answer) = world.attempt().await;
    answer.send(Ok(Some(world.grant()))).unwrap();
    eventually("it is granted", || lock.is_locked()).await;
    world.time.advance(length);
    request.lost(LossReason::Deleted);
    assert!(!lock.is_locked());
    // The server gets a second.
    for _ in 0..11 {
        world.time.advance(Duration::from_millis(100));
        world.asked().await;
    }
    let ended = tokio::time::timeout(SOON, waits.output()).await.expect("it waits for ever");
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn a_reader_under_a_lease_without_contact_knows_of_that() {
    let world = World::new();
    let catalog = world.client.rw_lock(NAME).unwrap();
    let (read, write) = (catalog.read(), catalog.write());
    let told = Recorder::listen(&read);
    let writer = ByHand::begun(write.acquire());
    world.attempt().await.1.send(Ok(Some(world.grant()))).unwrap();
    let writer = writer.output().await.unwrap();
    assert_eq!(next(&told), Told::Acquired);
    world.context.group_suspect(GROUP);
    assert_eq!(next(&told), Told::Suspect);
    let _reader = read.acquire_as(writer.owner(), Wait::Forever).await.unwrap().unwrap();
    assert_eq!([next(&told), next(&told)], [Told::Acquired, Told::Suspect]);
}

/// The reader has the lease of its writer until the server has answered, and then one of its own.
#[tokio::test]
async fn a_reader_is_valid_as_long_as_its_own_lease_and_lost_with_the_group_of_that() {
    for is_lost in [false, true] {
        let world = World::new();
        let (writer, reader) = world.writer_that_reads().await;
        let released = ByHand::begun(writer.release());
        let Asked::Downgrade(answer) = world.only().await else { panic!("no downgrade") };
        world.time.advance(Duration::from_secs(5));
        let (before, other) = (reader.hold().remaining().unwrap(), GroupId::new(1));
        if is_lost {
            world.context.group_lost(other, LossReason::SessionClosed);
            assert!(reader.hold().is_valid(), "its lease is in another group");
        }
        let grant = Grant { holder: Some(HolderId::new("7")), ..world.grant_in(other) };
        answer.send(Ok(Downgraded::Shared(grant))).unwrap();
        released.output().await.unwrap();
        assert_eq!(reader.hold().id().as_str(), "7", "the server shows it so");
        if is_lost {
            assert_eq!(reader.lost().await, Some(LossReason::SessionClosed));
        } else {
            assert_eq!(reader.hold().remaining().unwrap(), before + Duration::from_secs(5));
        }
    }
}

#[tokio::test]
async fn a_reader_learns_why_the_lease_of_its_writer_was_lost() {
    let world = World::new();
    let (writer, reader) = world.writer_that_reads().await;
    let released = ByHand::begun(writer.release());
    let Asked::Downgrade(answer) = world.only().await else { panic!("no downgrade") };
    answer.send(Ok(Downgraded::WasLost(LossReason::Taken))).unwrap();
    assert_eq!(released.output().await.unwrap_err().loss(), Some(LossReason::Taken));
    assert_eq!(reader.lost().await, Some(LossReason::Taken));
    assert!(world.asked().await.is_empty(), "the reader has its abort margin to stop");
    world.time.advance(Duration::from_mins(1));
    assert!(matches!(world.only().await, Asked::Release(_)), "something may be left of the lease");
}

#[tokio::test]
async fn a_place_that_is_lost_is_where_the_next_attempt_of_its_request_starts() {
    let world = World::new();
    let lock = world.client.mutex(NAME).unwrap();
    let waits = ByHand::begun(lock.acquire());
    let (request, answer) = world.attempt().await;
    assert_eq!(request.place(), None);
    request.keep_place(NonZeroU64::new(7).unwrap());
    let _behind = ByHand::begun(lock.acquire());
    answer.send(Ok(None)).unwrap();
    let Asked::Cancel(done) = world.only().await else { panic!("it may have left something") };
    assert!(world.asked().await.is_empty(), "what is left of it is not undone yet");
    done.send(()).unwrap();
    let (request, answer) = world.attempt().await;
    assert_eq!(request.place(), NonZeroU64::new(7));
    answer.send(Ok(Some(world.grant()))).unwrap();
    drop(waits.output().await.unwrap());
}

const HOUR: Duration = Duration::from_secs(60 * 60);

fn paused(world: &World) -> Arc<dyn DistributedLock> {
    world.client.mutex_with(NAME, LockOptions::new().at_least(HOUR)).unwrap()
}

#[tokio::test]
async fn a_wait_in_a_pause_looks_at_it_again_and_goes_on_when_an_operator_has_ended_it() {
    let world = World::new();
    let lock = paused(&world);
    let waits = ByHand::begun(lock.acquire());
    world.finds_a_pause(HOUR).await;
    for _ in 0..3 {
        world.looked().await.send(Ok(Some(HOUR))).unwrap();
        assert!(world.asked().await.is_empty());
        world.time.advance(Duration::from_millis(4_999));
        assert!(world.asked().await.is_empty());
        world.time.advance(Duration::from_millis(1));
    }
    let away = LockError::new(ErrorKind::Unreachable, Operation::Remember).retryable();
    world.looked().await.send(Err(away)).unwrap();
    assert!(world.asked().await.is_empty());
    world.time.advance(Duration::from_secs(5));
    world.looked().await.send(Ok(None)).unwrap();
    world.attempt().await.1.send(Ok(Some(world.grant()))).unwrap();
    let Asked::Remember(answer) = world.only().await else { panic!("it does not begin a pause") };
    answer.send(Ok(Remembered::Now)).unwrap();
    drop(waits.output().await.unwrap());
}

#[tokio::test]
async fn a_try_in_a_pause_asks_whether_it_goes_on() {
    let world = World::new();
    let lock = paused(&world);
    let tries = || ByHand::begun(lock.try_acquire());
    let first = tries();
    world.finds_a_pause(HOUR).await;
    world.looked().await.send(Ok(Some(HOUR))).unwrap();
    assert!(first.output().await.unwrap().is_none());
    let second = tries();
    let away = LockError::new(ErrorKind::Unreachable, Operation::Remember).retryable();
    world.looked().await.send(Err(away)).unwrap();
    assert_eq!(second.output().await.unwrap_err().kind(), ErrorKind::Unreachable);
    let Asked::Cancel(done) = world.only().await else { panic!("its outcome is not known") };
    done.send(()).unwrap();
    let third = tries();
    world.looked().await.send(Ok(None)).unwrap();
    world.attempt().await.1.send(Ok(None)).unwrap();
    assert!(third.output().await.unwrap().is_none());
}

#[tokio::test]
async fn a_limited_wait_in_a_pause_is_refused_if_the_server_says_before_its_end_that_it_goes_on() {
    for answers in [true, false] {
        let world = World::with(answering);
        let lock = paused(&world);
        let waits = ByHand::begun(lock.acquire_as(Owner::new(), world.within(Duration::from_secs(19))));
        world.finds_a_pause(HOUR).await;
        let mut looks = 0;
        for second in 0..19 {
            for asked in world.asked().await {
                let Asked::Recall(answer) = asked else { panic!("{asked:?}") };
                looks += 1;
                if answers || second < 16 {
                    answer.send(Ok(Some(HOUR))).unwrap();
                }
            }
            assert!(world.asked().await.is_empty());
            world.time.advance(Duration::from_secs(1));
        }
        // At the beginning, each five seconds, and three before the end.
        assert_eq!(looks, 5);
        let outcome = waits.output().await;
        assert_eq!(outcome.err().map(|error| error.kind()), (!answers).then_some(ErrorKind::Unreachable));
    }
}

#[tokio::test]
async fn a_question_about_a_pause_ends_with_the_pause() {
    let world = World::new();
    let lock = paused(&world);
    let _waits = ByHand::begun(lock.acquire());
    world.finds_a_pause(Duration::from_secs(10)).await;
    let _unanswered = world.looked().await;
    world.time.advance(Duration::from_secs(10));
    world.attempt().await;
}
