//! Tests of a backend's reports about a whole group, and of a backend that has bugs, with a backend made for these
//! tests.

mod odd {
    use std::num::{NonZeroU32, NonZeroU64};
    use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use lock_core::Released;
    use lock_core::{
        AcquireRequest, Backend, BackendContext, Capabilities, CharacterSet, ErrorKind, Grant, GroupId,
        LeaseState, LockError, LossReason, NameRules, Operation, Reach, Reserving, Term,
    };

    /// A backend that grants everything, and on top of that does what a test asks for.
    #[derive(Debug)]
    pub(crate) struct Odd {
        pub(crate) context: BackendContext,
        pub(crate) capabilities: Capabilities,
        pub(crate) script: Arc<Script>,
    }

    #[derive(Debug, Default)]
    pub(crate) struct Script {
        pub(crate) group: AtomicU64,
        /// Ends the group while the grant is on its way.
        pub(crate) lose_group_before_grant: AtomicUsize,
        pub(crate) panics_in_renew: AtomicUsize,
        pub(crate) renewals: AtomicUsize,
        pub(crate) lease: Option<Duration>,
        /// Renewals start this long before they were requested.
        pub(crate) renewed_from_before: Option<Duration>,
        /// How many waiting attempts lose their place in the queue, which is 7.
        pub(crate) places_lost: AtomicUsize,
        /// How many attempts are granted from a place in the queue, which is 7.
        pub(crate) granted_from_places: AtomicUsize,
        /// How many grants come later than the first poll.
        pub(crate) late_grants: AtomicUsize,
        /// The handle of the last attempt.
        pub(crate) attempt: Mutex<Option<AcquireRequest>>,
        /// The places that attempts started from.
        pub(crate) places_seen: Mutex<Vec<Option<NonZeroU64>>>,
        /// How many releases fail, and how many were requested.
        pub(crate) releases_fail: AtomicUsize,
        pub(crate) releases: AtomicUsize,
        pub(crate) cancels_fail: AtomicUsize,
        pub(crate) cancels: AtomicUsize,
        /// How many leases the core keeps.
        pub(crate) leases: AtomicUsize,
        /// How often the last lease was passed on.
        pub(crate) passes: Mutex<Arc<AtomicU32>>,
    }

    #[derive(Debug)]
    pub(crate) struct OddLease(Arc<Script>);

    impl OddLease {
        fn new(script: &Arc<Script>) -> Self {
            script.leases.fetch_add(1, Ordering::SeqCst);
            Self(Arc::clone(script))
        }
    }

    impl Drop for OddLease {
        fn drop(&mut self) {
            self.0.leases.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Odd {
        pub(crate) fn new(context: BackendContext, script: Arc<Script>) -> Self {
            let names = NameRules::new(CharacterSet::ANY, 600);
            let capabilities = Capabilities::new("odd", Reach::Process, names);
            let sections = NonZeroU32::new(3).unwrap();
            Self { context, capabilities: capabilities.with_reserving(Reserving::AtMost(sections)), script }
        }
    }

    fn take(count: &AtomicUsize) -> bool {
        count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    }

    impl Backend for Odd {
        type Lease = OddLease;

        fn capabilities(&self) -> &Capabilities {
            &self.capabilities
        }

        async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<OddLease>>, LockError> {
            self.script.places_seen.lock().unwrap().push(request.place());
            if take(&self.script.places_lost) {
                request.keep_place(NonZeroU64::new(7).unwrap());
                return Ok(None);
            }
            if take(&self.script.granted_from_places) {
                request.keep_place(NonZeroU64::new(7).unwrap());
            }
            *self.script.attempt.lock().unwrap() = Some(request.clone());
            if take(&self.script.late_grants) {
                tokio::task::yield_now().await;
            }
            let group = GroupId::new(self.script.group.load(Ordering::SeqCst));
            if take(&self.script.lose_group_before_grant) {
                self.context.group_lost(group, LossReason::SessionClosed);
                self.script.group.fetch_add(1, Ordering::SeqCst);
            }
            let term = match self.script.lease {
                Some(length) => Term::Leased { anchor: self.context.clock().now(), length },
                None => Term::UntilReported,
            };
            let passes = Arc::new(AtomicU32::new(0));
            *self.script.passes.lock().unwrap() = Arc::clone(&passes);
            let (passes, sections) = (Some(passes), request.sections());
            Ok(Some(Grant { passes, sections, ..Grant::new(OddLease::new(&self.script), group, term) }))
        }

        async fn cancel(&self, _: &AcquireRequest) -> Result<(), LockError> {
            self.script.cancels.fetch_add(1, Ordering::SeqCst);
            if take(&self.script.cancels_fail) {
                return Err(LockError::new(ErrorKind::Unreachable, Operation::Cancel).retryable());
            }
            Ok(())
        }

        async fn renew(&self, _: GroupId, leases: &[Arc<OddLease>]) -> Result<Vec<LeaseState>, LockError> {
            assert!(!take(&self.script.panics_in_renew), "a panic on request");
            self.script.renewals.fetch_add(1, Ordering::SeqCst);
            let state = match self.script.renewed_from_before {
                None => LeaseState::Held,
                Some(before) => LeaseState::HeldFrom(self.context.clock().now().minus(before)),
            };
            Ok(vec![state; leases.len()])
        }

        async fn release(&self, _: &OddLease) -> Result<Released, LockError> {
            self.script.releases.fetch_add(1, Ordering::SeqCst);
            if take(&self.script.releases_fail) {
                return Err(LockError::new(ErrorKind::Unreachable, Operation::Release).retryable());
            }
            Ok(Released::Clean)
        }

        async fn ping(&self) -> Result<(), LockError> {
            Ok(())
        }
    }
}

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{ByHand, DropAfter, Recorder, SOON, Told, advance_to_next, eventually, next};
use lock_core::{
    BackendContext, ClientBuilder, Clock, EngineChoice, ErrorKind, GroupId, HoldEnd, LossReason,
};
use odd::{Odd, Script};

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_lost_while_a_grant_is_on_its_way_takes_the_grant_with_it() {
    let script = Arc::new(Script::default());
    let client = ClientBuilder::new().build(|context| Ok(Odd::new(context, Arc::clone(&script)))).unwrap();
    let lock = client.mutex("orders/42").unwrap();
    script.lose_group_before_grant.store(1, Ordering::SeqCst);
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(LossReason::SessionClosed)));
    // A waiter gets a grant of the next session.
    script.lose_group_before_grant.store(1, Ordering::SeqCst);
    assert!(lock.acquire().await.unwrap().hold().is_valid());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_waiter_that_lost_its_place_gets_it_back() {
    let script = Arc::new(Script::default());
    let client = ClientBuilder::new().build(|context| Ok(Odd::new(context, Arc::clone(&script)))).unwrap();
    let lock = client.mutex("orders/42").unwrap();
    script.places_lost.store(1, Ordering::SeqCst);
    lock.acquire().await.unwrap().release().await.unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    let seen: Vec<_> = script.places_seen.lock().unwrap().drain(..).collect();
    assert_eq!(seen, [None, NonZeroU64::new(7), None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_grant_is_lost_unseen_gets_its_place_back() {
    let script = Arc::new(Script::default());
    let mut context = None;
    let client = ClientBuilder::new().build(|given| {
        context = Some(given.clone());
        Ok(Odd::new(given, Arc::clone(&script)))
    });
    let lock = client.unwrap().mutex("orders/42").unwrap();
    let held = lock.acquire().await.unwrap();
    let waiter = ByHand::begun(lock.acquire());
    script.granted_from_places.store(1, Ordering::SeqCst);
    script.group.store(1, Ordering::SeqCst);
    held.release().await.unwrap();
    eventually("it is granted", || lock.is_locked()).await;
    script.group.store(2, Ordering::SeqCst);
    context.unwrap().group_lost(GroupId::new(1), LossReason::ConnectionLost);
    let guard = waiter.output().await.unwrap();
    assert!(guard.hold().is_valid());
    let seen: Vec<_> = script.places_seen.lock().unwrap().drain(..).collect();
    assert_eq!(seen, [None, None, NonZeroU64::new(7)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_learns_how_often_a_lease_was_passed_on() {
    let script = Arc::new(Script::default());
    let builder = ClientBuilder::new().local_handoff(3, SOON);
    let client = builder.build(|context| Ok(Odd::new(context, Arc::clone(&script)))).unwrap();
    let lock = client.mutex("orders/42").unwrap();
    let mut held = lock.acquire().await.unwrap();
    let passes = Arc::clone(&script.passes.lock().unwrap());
    for count in 1..3 {
        let waiting = ByHand::begun(lock.acquire());
        held.release().await.unwrap();
        held = waiting.output().await.unwrap();
        assert_eq!(passes.load(Ordering::SeqCst), count);
    }
    let waiting = ByHand::begun(lock.acquire());
    held.release().await.unwrap();
    waiting.output().await.unwrap().release().await.unwrap();
    assert_eq!(passes.load(Ordering::SeqCst), 2, "the last one has a lease of its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_keeps_of_an_ended_hold_keeps_nothing_of_the_backend() {
    let script = Arc::new(Script::default());
    let mut context = None;
    let client = ClientBuilder::new().build(|given| {
        context = Some(given.clone());
        Ok(Odd::new(given, Arc::clone(&script)))
    });
    let (client, context) = (client.unwrap(), context.unwrap());
    let lock = client.mutex("orders/42").unwrap();
    let guard = lock.acquire().await.unwrap();
    let (hold, lost) = (guard.hold().clone(), guard.lost());
    assert_eq!(script.leases.load(Ordering::SeqCst), 1);
    guard.release().await.unwrap();
    client.idle().await;
    assert_eq!(script.leases.load(Ordering::SeqCst), 0);

    let lost_guard = lock.acquire().await.unwrap();
    context.group_lost(GroupId::new(0), LossReason::SessionClosed);
    client.idle().await;
    assert_eq!(script.leases.load(Ordering::SeqCst), 0);
    assert_eq!(lost_guard.lost().await, Some(LossReason::SessionClosed));
    assert_eq!((lost.await, hold.end()), (None, Some(HoldEnd::Released)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_for_a_loss_is_woken_by_the_release() {
    let client = ClientBuilder::new().build(|context| Ok(Odd::new(context, Arc::default()))).unwrap();
    let guard = client.mutex("orders/42").unwrap().acquire().await.unwrap();
    let waiting = ByHand::begun(guard.lost());
    guard.release().await.unwrap();
    waiting.woken().await;
    assert_eq!(waiting.output().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_repeated_until_it_is_answered_unless_the_lease_ends_by_itself() {
    let lease = Duration::from_secs(10);
    for leftovers_end in [false, true] {
        let (clock, time) = Clock::manual();
        let script = Arc::new(Script { lease: Some(lease), ..Script::default() });
        let client = ClientBuilder::new().clock(clock.clone()).build(|context| {
            let mut odd = Odd::new(context, Arc::clone(&script));
            if leftovers_end {
                odd.capabilities = odd.capabilities.with_leftovers_gone_after(lease);
            }
            Ok(odd)
        });
        let client = client.unwrap();
        let guard = client.mutex("orders/42").unwrap().acquire().await.unwrap();
        let hold = guard.hold().clone();
        script.releases_fail.store(usize::MAX, Ordering::SeqCst);
        drop(guard);
        let idle = tokio::spawn({
            let client = client.clone();
            async move { client.idle().await }
        });
        let gone = clock.now().plus(3 * lease);
        eventually("all that time is over", || {
            time.advance(Duration::from_millis(100));
            clock.now() >= gone
        })
        .await;
        let asked = script.releases.load(Ordering::SeqCst);
        if leftovers_end {
            idle.await.unwrap();
            assert_eq!(script.releases.load(Ordering::SeqCst), asked);
        } else {
            eventually("it is asked again", || {
                time.advance(Duration::from_millis(100));
                script.releases.load(Ordering::SeqCst) > asked
            })
            .await;
            assert!(!idle.is_finished());
            script.releases_fail.store(0, Ordering::SeqCst);
            eventually("it is answered", || {
                time.advance(Duration::from_millis(100));
                idle.is_finished()
            })
            .await;
        }
        assert_eq!(script.leases.load(Ordering::SeqCst), 0);
        assert!(hold.end().is_some());
    }
}

/// The clock stands still: no pause ends by itself.
#[tokio::test(flavor = "multi_thread")]
async fn the_return_of_contact_ends_the_pause_before_a_release_or_a_cancel_is_repeated() {
    let (clock, _time) = Clock::manual();
    let script = Arc::new(Script::default());
    let mut context = None;
    let client = ClientBuilder::new().clock(clock).build(|given| {
        context = Some(given.clone());
        Ok(Odd::new(given, Arc::clone(&script)))
    });
    let (client, context) = (client.unwrap(), context.unwrap());
    let lock = client.mutex("orders/42").unwrap();
    let guard = lock.acquire().await.unwrap();
    script.releases_fail.store(2, Ordering::SeqCst);
    script.cancels_fail.store(1, Ordering::SeqCst);
    context.group_suspect(GroupId::new(0));
    drop(guard);
    eventually("the release has failed", || script.releases.load(Ordering::SeqCst) == 1).await;
    // Another connection has contact again; the one of the release has none yet.
    context.group_restored(GroupId::new(1));
    eventually("it has failed again", || script.releases.load(Ordering::SeqCst) == 2).await;
    // An attempt that has failed must be undone.
    script.places_lost.store(1, Ordering::SeqCst);
    let after = lock.acquire().await.unwrap();
    eventually("the cancel has failed", || script.cancels.load(Ordering::SeqCst) == 1).await;
    context.group_restored(GroupId::new(0));
    let idle = tokio::time::timeout(SOON, client.idle()).await;
    assert!(idle.is_ok(), "they wait for the end of their pauses");
    let asked = (script.releases.load(Ordering::SeqCst), script.cancels.load(Ordering::SeqCst));
    assert_eq!(asked, (3, 2));
    after.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_leaves_the_holder_the_abort_margin() {
    let margin = Duration::from_secs(3);
    let reasons = [(LossReason::Broken, true), (LossReason::Expired, true), (LossReason::Deleted, false)];
    for (reason, has_margin) in reasons {
        let (clock, time) = Clock::manual();
        let script = Arc::new(Script { lease: Some(Duration::from_secs(20)), ..Script::default() });
        let builder = ClientBuilder::new().clock(clock.clone()).abort_margin(margin);
        let client = builder.build(|context| Ok(Odd::new(context, Arc::clone(&script)))).unwrap();
        let lock = client.mutex("orders/42").unwrap();
        let guard = lock.acquire().await.unwrap();
        let attempt = script.attempt.lock().unwrap().clone().unwrap();
        attempt.lost(reason);
        assert!(!guard.hold().is_valid());
        assert_eq!(guard.lost().await, Some(reason));
        let begun = clock.now();
        eventually("it is released", || {
            let is_released = script.releases.load(Ordering::SeqCst) > 0;
            if !is_released && has_margin {
                time.advance(Duration::from_millis(100));
            }
            is_released
        })
        .await;
        let waited = clock.now().since(begun);
        assert_eq!(waited >= margin, has_margin, "after {waited:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_renewal_is_a_failed_renewal_and_the_group_goes_on() {
    let (clock, time) = Clock::manual();
    let script = Arc::new(Script { lease: Some(Duration::from_secs(10)), ..Script::default() });
    let builder = ClientBuilder::new().clock(clock.clone());
    let client = builder.build(|context| Ok(Odd::new(context, Arc::clone(&script)))).unwrap();
    let guard = client.mutex("orders/42").unwrap().acquire().await.unwrap();
    script.panics_in_renew.store(1, Ordering::SeqCst);
    time.advance(Duration::from_millis(2_500));
    eventually("it has panicked", || script.panics_in_renew.load(Ordering::SeqCst) == 0).await;
    assert!(guard.hold().is_valid());
    let end = clock.now().plus(Duration::from_secs(5));
    eventually("it is renewed again", || {
        advance_to_next(&time, end);
        script.renewals.load(Ordering::SeqCst) > 0
    })
    .await;
    assert!(guard.hold().is_valid());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_lasts_from_the_moment_that_the_backend_names() {
    let (clock, time) = Clock::manual();
    let script = Arc::new(Script {
        lease: Some(Duration::from_secs(10)),
        renewed_from_before: Some(Duration::from_secs(1)),
        ..Script::default()
    });
    let builder = ClientBuilder::new().clock(clock.clone());
    let client = builder.build(|context| Ok(Odd::new(context, Arc::clone(&script)))).unwrap();
    let guard = client.mutex("orders/42").unwrap().acquire().await.unwrap();
    let granted_for = guard.hold().remaining().unwrap();
    time.advance(Duration::from_millis(2_500));
    eventually("it is renewed", || script.renewals.load(Ordering::SeqCst) == 1).await;
    let renewed_for = granted_for.checked_sub(Duration::from_secs(1)).unwrap();
    eventually("it lasts from then", || guard.hold().remaining() == Some(renewed_for)).await;
    assert!(guard.hold().is_valid());
}

/// It lasts from its latest moment, whichever a renewal names.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_from_an_earlier_moment_than_the_grant_takes_nothing_from_the_lease() {
    let (clock, time) = Clock::manual();
    time.advance(Duration::from_secs(100));
    let (lease, before) = (Some(Duration::from_secs(10)), Some(Duration::from_secs(20)));
    let script = Arc::new(Script { lease, renewed_from_before: before, ..Script::default() });
    let (builder, mut context) = (ClientBuilder::new().clock(clock).local_handoff(3, SOON), None);
    let client = builder.build(|given| {
        context = Some(given.clone());
        Ok(Odd::new(given, Arc::clone(&script)))
    });
    let (client, context) = (client.unwrap(), context.unwrap());
    let lock = client.mutex("orders/42").unwrap();
    let told = Recorder::listen(&lock);
    let held = lock.acquire().await.unwrap();
    time.advance(Duration::from_secs(1));
    let left = held.hold().remaining();
    context.group_suspect(GroupId::new(0));
    context.group_restored(GroupId::new(0));
    assert_eq!([next(&told), next(&told), next(&told)], [Told::Acquired, Told::Suspect, Told::Restored]);
    assert_eq!(held.hold().remaining(), left);
    // Enough is left of it for the next hold.
    let waiting = ByHand::begun(lock.acquire());
    held.release().await.unwrap();
    let guard = waiting.output().await.unwrap();
    assert_eq!(guard.hold().remaining(), left);
    assert_eq!(script.passes.lock().unwrap().load(Ordering::SeqCst), 1, "it came from the server");
}

#[tokio::test]
async fn what_a_backend_cannot_do_is_refused_before_it_is_asked() {
    let client = ClientBuilder::new().build(|context| Ok(Odd::new(context, Arc::default()))).unwrap();
    assert_eq!(client.status("orders/42").await.unwrap_err().kind(), ErrorKind::Unsupported);
    let holder = lock_core::HolderId::new("another");
    let error = client.break_holder("orders/42", &holder).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("\"orders/42\"") && error.to_string().contains("odd"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_one_group_is_renewed_in_one_call() {
    let (clock, time) = Clock::manual();
    let script = Arc::new(Script { lease: Some(Duration::from_secs(10)), ..Script::default() });
    let (builder, mut context) = (ClientBuilder::new().clock(clock.clone()), None);
    let client = builder.build(|given| {
        context = Some(given.clone());
        Ok(Odd::new(given, Arc::clone(&script)))
    });
    let (client, context) = (client.unwrap(), context.unwrap());
    let mut guards = Vec::new();
    for number in 0..100 {
        guards.push(client.mutex(format!("orders/{number}")).unwrap().acquire().await.unwrap());
    }
    time.advance(Duration::from_millis(2_500));
    let remaining = |guard: &lock_core::LockGuard| guard.hold().remaining().unwrap();
    eventually("all are renewed", || guards.iter().all(|guard| remaining(guard) > Duration::from_secs(9)))
        .await;
    assert_eq!(script.renewals.load(Ordering::SeqCst), 1);
    context.renew_now(GroupId::new(0));
    eventually("all are renewed again", || script.renewals.load(Ordering::SeqCst) == 2).await;
}

/// Returns a lock whose grants come when the test lets its own runtime run, and the context of its backend.
#[allow(clippy::unwrap_used, reason = "not in a #[test] function, but only for tests")]
fn late_grants(count: usize) -> (lock_core::LockClient, Arc<dyn lock_core::DistributedLock>, BackendContext) {
    let lease = Some(Duration::from_secs(30));
    let script = Arc::new(Script { late_grants: count.into(), lease, ..Script::default() });
    let builder = ClientBuilder::new().engine(EngineChoice::Caller);
    let mut context = None;
    let client = builder.build(|given| {
        context = Some(given.clone());
        Ok(Odd::new(given, Arc::clone(&script)))
    });
    let client = client.unwrap();
    let lock = client.mutex("orders/42").unwrap();
    (client, lock, context.unwrap())
}

#[tokio::test]
async fn a_doubt_before_the_owner_has_the_hold_in_hand_is_reported_after_the_acquisition() {
    let (_client, lock, context) = late_grants(1);
    let told = Recorder::listen(&lock);
    let mut waiting = Box::pin(lock.acquire());
    assert!(DropAfter::new(1, waiting.as_mut()).await.is_none());
    eventually("it is granted", || lock.is_locked()).await;
    context.group_suspect(GroupId::new(0));
    let guard = waiting.await.unwrap();
    assert_eq!((next(&told), next(&told)), (Told::Acquired, Told::Suspect));
    context.group_restored(GroupId::new(0));
    // The end of a doubt would be left out if the hold had already ended. The engine runs on this thread.
    let mut after = None;
    eventually("it is renewed", || {
        after = told.try_recv().ok();
        after.is_some()
    })
    .await;
    assert_eq!(after, Some(Told::Restored));
    guard.release().await.unwrap();
    assert_eq!(next(&told), Told::Released);
}

#[tokio::test]
async fn a_doubt_about_a_grant_that_its_waiter_did_not_live_to_see_is_reported_to_no_one() {
    let (client, lock, context) = late_grants(1);
    let told = Recorder::listen(&lock);
    let mut waiting = Box::pin(lock.acquire());
    assert!(DropAfter::new(1, waiting.as_mut()).await.is_none());
    eventually("it is granted", || lock.is_locked()).await;
    context.group_suspect(GroupId::new(0));
    // The listener threads serve one lock after the other, so all events of the first lock have been delivered by now.
    let other = client.mutex("orders/43").unwrap();
    let marker = Recorder::listen(&other);
    other.acquire().await.unwrap().release().await.unwrap();
    assert_eq!((next(&marker), next(&marker)), (Told::Acquired, Told::Released));
    drop(waiting);
    client.idle().await;
    // Events of one lock are delivered in order: there was none before these.
    lock.acquire().await.unwrap().release().await.unwrap();
    assert_eq!((next(&told), next(&told)), (Told::Acquired, Told::Released));
}
