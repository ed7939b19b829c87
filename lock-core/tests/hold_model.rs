//! The state machine of a hold, with what its listeners are told of it, under a model checker: loom runs each test through every
//! interleaving of its threads, with at most three preemptions.
//!
//! The modules are compiled into this test unchanged, with loom's mutex instead of the standard one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "also in shared functions of the tests"
)]
#![allow(dead_code, reason = "the modules have functions that no model uses")]
#![allow(
    missing_docs,
    unreachable_pub,
    reason = "the modules are private here, and documented where they are public"
)]

#[path = "../src/runtime/few.rs"]
mod few;
#[path = "../src/types/loss.rs"]
mod loss;
#[path = "../src/policy/hold/state.rs"]
mod state;
#[path = "loom_sync/mod.rs"]
mod sync;
#[path = "../src/runtime/waker.rs"]
mod waker;

/// Provides what the modules import.
mod runtime {
    pub(crate) use super::few::Few;
    pub(crate) use super::sync::Mutex;
    pub(crate) use super::waker::with_waker;
}

mod types {
    pub(crate) use super::loss::{HoldEnd, LossReason};
}

use std::future::poll_fn;
use std::task::Waker;

use few::Few;
use loom::future::block_on;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use loss::{HoldEnd, LossReason};
use state::{Event, HoldState, Phase};

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // `LOOM_MAX_PREEMPTIONS` sets another bound.
    builder.preemption_bound.get_or_insert(3);
    builder.check(model);
}

/// A hold, and the events of its listener.
struct Reported {
    hold: HoldState,
    heard: sync::Mutex<Vec<Event>>,
}

impl Reported {
    fn until(deadline: u64) -> Arc<Self> {
        Arc::new(Self { hold: HoldState::new(deadline), heard: sync::Mutex::new(Vec::new()) })
    }

    fn hear(&self, event: Event) {
        self.heard.lock().push(event);
    }

    /// Returns what listeners hear, if the owner has it for the first time.
    fn acquired(&self) -> Option<Vec<Event>> {
        let mut heard = Vec::new();
        let is_first = self.hold.acquired(|event| {
            heard.push(event);
            self.hear(event);
        });
        is_first.then_some(heard)
    }

    fn suspect(&self) -> bool {
        self.hold.suspect(|event| self.hear(event))
    }

    fn renew(&self, deadline: u64, now: u64) -> bool {
        self.hold.renew(deadline, || now, |event| self.hear(event))
    }

    /// Ends the hold, and wakes its watchers, as the local lock does. Returns whether it is told of at once, if it ends now.
    fn lose(&self, reason: LossReason) -> Option<bool> {
        self.ends(|tell, woken| self.hold.lose(reason, tell, woken))
    }

    fn ends(&self, end: impl FnOnce(&mut dyn FnMut(Event), &mut Few<Waker>) -> bool) -> Option<bool> {
        let (mut is_told, mut woken) = (false, Few::default());
        let mut tell = |event| {
            is_told = true;
            self.hear(event);
        };
        let has_ended = end(&mut tell, &mut woken);
        woken.drain(Waker::wake);
        has_ended.then_some(is_told)
    }

    /// Ends it at once, as far as it still stands.
    fn release(&self, loss: Option<LossReason>) -> Option<bool> {
        let has_begun = self.hold.begin_release();
        let is_told = self.ends(|tell, woken| self.hold.finish(loss, tell, woken));
        assert_eq!(is_told.is_some(), has_begun, "a release ends what it has begun to end");
        is_told
    }
}

#[test]
fn a_hold_that_has_expired_is_not_valid_and_not_renewed() {
    explore(|| {
        let world = Reported::until(10);
        assert_eq!(world.hold.remaining(|| 9), 1);
        assert_eq!(world.hold.remaining(|| 10), 0);
        world.suspect();
        assert!(!world.renew(20, 10), "it has expired");
        assert_eq!(world.hold.last_deadline(), 10);
        assert!(world.hold.is_suspect());
        // Its end is for the local lock to declare.
        assert_eq!(world.hold.phase(), Phase::Standing);
    });
}

#[test]
fn a_hold_ends_in_exactly_one_way() {
    explore(|| {
        let world = Reported::until(10);
        world.acquired();
        let (expiring, losing) = (Arc::clone(&world), Arc::clone(&world));
        let expired = thread::spawn(move || expiring.lose(LossReason::Expired).is_some());
        let lost = thread::spawn(move || losing.lose(LossReason::Taken).is_some());
        let released = world.release(None).is_some();
        let ends = [released, expired.join().unwrap(), lost.join().unwrap()];
        assert_eq!(ends.iter().filter(|end| **end).count(), 1, "{ends:?}");
        let (end, event) = match ends {
            [true, ..] => (HoldEnd::Released, Event::Released),
            [_, true, _] => (HoldEnd::Lost(LossReason::Expired), Event::Abort(LossReason::Expired)),
            _ => (HoldEnd::Lost(LossReason::Taken), Event::Abort(LossReason::Taken)),
        };
        assert_eq!(world.hold.phase(), Phase::Ended(end));
        assert_eq!(*world.heard.lock(), [Event::Acquired, event]);
    });
}

#[test]
fn a_renewal_never_revives_what_is_lost() {
    explore(|| {
        let world = Reported::until(10);
        world.acquired();
        let renewing = Arc::clone(&world);
        let renewing = thread::spawn(move || renewing.renew(20, 9));
        assert!(world.lose(LossReason::Expired).is_some());
        renewing.join().unwrap();
        let last = world.hold.last_deadline();
        assert!(!world.renew(30, 9));
        assert_eq!((world.hold.last_deadline(), world.hold.remaining(|| 0)), (last, 0));
        assert_eq!(world.hold.phase(), Phase::Ended(HoldEnd::Lost(LossReason::Expired)));
    });
}

#[test]
fn a_hold_that_was_seen_invalid_is_not_seen_valid_again() {
    explore(|| {
        let hold = Arc::new(HoldState::new(10));
        let clock = Arc::new(AtomicU64::new(9));
        let (renewing, time) = (Arc::clone(&hold), Arc::clone(&clock));
        let renewed = thread::spawn(move || renewing.renew(20, || time.load(Ordering::SeqCst), |_| {}));
        let time = Arc::clone(&clock);
        let passing = thread::spawn(move || time.store(10, Ordering::SeqCst));
        let remaining = || hold.remaining(|| clock.load(Ordering::SeqCst));
        let (first, second) = (remaining(), remaining());
        assert!(first > 0 || second == 0, "first {first}, then {second}");
        renewed.join().unwrap();
        passing.join().unwrap();
        assert!(first > 0 || remaining() == 0, "first {first}, later {}", remaining());
    });
}

#[test]
fn reports_begin_with_the_acquisition_and_end_as_contact_is() {
    explore(|| {
        let world = Reported::until(u64::MAX);
        let (doubting, hoping) = (Arc::clone(&world), Arc::clone(&world));
        let doubting = thread::spawn(move || doubting.suspect());
        let hoping = thread::spawn(move || hoping.renew(u64::MAX, 0));
        assert!(world.acquired().is_some());
        assert!(doubting.join().unwrap(), "the doubt was new");
        assert_eq!(hoping.join().unwrap(), !world.hold.is_suspect());
        let heard = world.heard.lock();
        let doubts: &[_] = match heard.as_slice() {
            [Event::Acquired, doubts @ ..] => doubts,
            other => panic!("{other:?}"),
        };
        let expected: &[&[Event]] = if world.hold.is_suspect() {
            &[&[Event::Suspect]]
        } else {
            &[&[], &[Event::Suspect, Event::Restored]]
        };
        assert!(expected.contains(&doubts), "{doubts:?}");
    });
}

#[test]
fn a_loss_is_the_last_report_and_comes_after_the_acquisition() {
    explore(|| {
        let world = Reported::until(u64::MAX);
        let (doubting, losing) = (Arc::clone(&world), Arc::clone(&world));
        let doubting = thread::spawn(move || doubting.suspect());
        let losing = thread::spawn(move || losing.lose(LossReason::Taken));
        let acquired = world.acquired().expect("it is the first time");
        doubting.join().unwrap();
        let is_told = losing.join().unwrap().expect("nothing else ends it");
        // One of the two reports the loss to the log and the metrics.
        assert_eq!(acquired.contains(&Event::Abort(LossReason::Taken)), !is_told, "{acquired:?}");
        assert_eq!(world.acquired(), None);
        let heard = world.heard.lock();
        let without_doubt = [Event::Acquired, Event::Abort(LossReason::Taken)];
        let with_doubt = [Event::Acquired, Event::Suspect, Event::Abort(LossReason::Taken)];
        assert!(**heard == without_doubt || **heard == with_doubt, "{heard:?}");
    });
}

#[test]
fn a_release_is_the_last_report_and_no_doubt_comes_after_it_has_begun() {
    explore(|| {
        let world = Reported::until(u64::MAX);
        world.acquired();
        let (doubting, losing) = (Arc::clone(&world), Arc::clone(&world));
        assert!(world.hold.begin_release());
        let doubting = thread::spawn(move || doubting.suspect());
        let losing = thread::spawn(move || losing.lose(LossReason::Taken));
        assert_eq!(world.ends(|tell, woken| world.hold.finish(None, tell, woken)), Some(true));
        assert!(!doubting.join().unwrap(), "of a hold that does not stand");
        assert_eq!(losing.join().unwrap(), None);
        assert_eq!(*world.heard.lock(), [Event::Acquired, Event::Released]);
    });
}

#[test]
fn a_waiter_for_the_end_is_woken() {
    let ends: [fn(&Reported) -> Option<bool>; 2] =
        [|world| world.lose(LossReason::Expired), |world| world.release(Some(LossReason::Expired))];
    for end in ends {
        explore(move || {
            let world = Reported::until(10);
            let ending = Arc::clone(&world);
            let ended = thread::spawn(move || end(&ending));
            let mut watcher = None;
            let end = block_on(poll_fn(|context| world.hold.poll(&mut watcher, context)));
            assert_eq!(end, HoldEnd::Lost(LossReason::Expired));
            assert_eq!(ended.join().unwrap(), Some(false));
        });
    }
}

#[test]
fn an_answer_that_comes_late_does_not_move_the_deadline_back() {
    explore(|| {
        let world = Reported::until(10);
        for (deadline, now) in [(20, 5), (15, 6)] {
            assert!(!world.renew(deadline, now), "contact was good");
        }
        assert_eq!(world.hold.last_deadline(), 20);
    });
}
