//! The state machine of a hold, and its reports, under a model checker: loom runs each test through every interleaving
//! of its threads, with at most three preemptions.
//!
//! The modules are compiled into this test unchanged, with loom's mutex instead of the standard one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // also in shared functions of the tests
#![allow(dead_code)] // the modules have functions that no model uses
#![allow(missing_docs, unreachable_pub)] // the modules are private here, and documented where they are public

#[path = "../src/policy/hold/reports.rs"]
mod reports;
#[path = "../src/policy/hold/state.rs"]
mod state;
#[path = "loom_sync/mod.rs"]
mod sync;
#[path = "../src/runtime/waker.rs"]
mod waker;

/// Provides what the modules import.
mod runtime {
    pub(crate) use super::{sync, waker};
}

use std::future::poll_fn;

use loom::future::block_on;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use reports::{Event, Known, Reports};
use state::{Checked, Contact, HoldState, Phase, Renewed};

type Reason = &'static str;

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // `LOOM_MAX_PREEMPTIONS` sets another bound.
    builder.preemption_bound.get_or_insert(3);
    builder.check(model);
}

#[test]
fn a_hold_that_has_expired_is_neither_renewed_nor_released_nor_verified() {
    explore(|| {
        let hold = HoldState::new(10);
        assert_eq!(hold.verify(|| 9, "expired"), Ok(()));
        assert_eq!(hold.verify(|| 10, "expired"), Err("expired"));
        assert_eq!(hold.renew(20, || 10), Renewed::TooLate);
        assert_eq!(hold.begin_release(|| 10, "expired"), Err("expired"));
        assert_eq!(hold.phase(), Phase::Standing);
        assert_eq!(hold.expire(10, "expired"), Checked::Expired);
    });
}

#[test]
fn a_hold_ends_in_exactly_one_way() {
    explore(|| {
        let hold = Arc::new(HoldState::new(10));
        let expiring = Arc::clone(&hold);
        let expired = thread::spawn(move || expiring.expire(10, "expired") == Checked::Expired);
        let losing = Arc::clone(&hold);
        let lost = thread::spawn(move || losing.lose("taken"));
        let released = hold.begin_release(|| 5, "expired").is_ok();
        if released {
            assert!(hold.finish(None));
        }
        let ends = [released, expired.join().unwrap(), lost.join().unwrap()];
        assert_eq!(ends.iter().filter(|end| **end).count(), 1, "{ends:?}");
    });
}

#[test]
fn a_doubt_that_comes_while_a_lease_passes_to_the_next_hold_is_not_missed() {
    explore(|| {
        let hold = Arc::new(HoldState::<Reason>::new(10));
        let group = Arc::new(Mutex::new(vec![Arc::clone(&hold)]));
        let doubted = Arc::clone(&group);
        let doubting = thread::spawn(move || {
            for _ in 0..2 {
                let holds = doubted.lock().unwrap().clone();
                for hold in holds {
                    hold.suspect();
                }
            }
        });
        hold.begin_release(|| 0, "expired").unwrap();
        let next = Arc::new(HoldState::<Reason>::new(10));
        group.lock().unwrap().push(Arc::clone(&next));
        if hold.is_suspect() {
            next.suspect();
        }
        doubting.join().unwrap();
        assert_eq!(next.contact(), Some(Contact::Suspect));
    });
}

#[test]
fn a_renewal_never_revives_what_has_expired() {
    explore(|| {
        let hold = Arc::new(HoldState::new(10));
        let renewing = Arc::clone(&hold);
        let renewed = thread::spawn(move || renewing.renew(20, || 9) != Renewed::TooLate);
        let expired = hold.expire(10, "expired") == Checked::Expired;
        assert_ne!(renewed.join().unwrap(), expired);
        assert_eq!(hold.renew(30, || 10) == Renewed::TooLate, expired);
    });
}

#[test]
fn a_hold_that_was_seen_invalid_is_not_seen_valid_again() {
    explore(|| {
        let hold = Arc::new(HoldState::<Reason>::new(10));
        let clock = Arc::new(AtomicU64::new(9));
        let (renewing, time) = (Arc::clone(&hold), Arc::clone(&clock));
        let renewed = thread::spawn(move || renewing.renew(20, || time.load(Ordering::SeqCst)));
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

/// A hold, and the events of its listener.
struct Reported {
    hold: HoldState<Reason>,
    reports: Reports<Reason>,
    heard: sync::Mutex<Vec<Event<Reason>>>,
}

impl Reported {
    fn new() -> Arc<Self> {
        let heard = sync::Mutex::new(Vec::new());
        Arc::new(Self { hold: HoldState::new(u64::MAX), reports: Reports::new(), heard })
    }

    fn hear(&self, event: Event<Reason>) {
        self.heard.lock().push(event);
    }

    fn acquired(&self) {
        self.reports.acquired(|| self.hold.contact(), |event| self.hear(event));
    }

    fn contact_changed(&self) {
        self.reports.contact_changed(|| self.hold.contact(), |event| self.hear(event));
    }

    fn suspect(&self) {
        if self.hold.suspect() {
            self.contact_changed();
        }
    }

    fn restore(&self) {
        if self.hold.restore() {
            self.contact_changed();
        }
    }

    fn lose(&self) -> Option<Known> {
        self.hold.lose("taken").then(|| self.reports.ended(Event::Abort("taken"), |event| self.hear(event)))
    }
}

#[test]
fn reports_begin_with_the_acquisition_and_end_as_contact_is() {
    explore(|| {
        let world = Reported::new();
        let (doubting, hoping) = (Arc::clone(&world), Arc::clone(&world));
        let doubting = thread::spawn(move || doubting.suspect());
        let hoping = thread::spawn(move || hoping.restore());
        world.acquired();
        doubting.join().unwrap();
        hoping.join().unwrap();
        let heard = world.heard.lock();
        let is_suspect = world.hold.suspect();
        let doubts: &[_] = match heard.as_slice() {
            [Event::Acquired, doubts @ ..] => doubts,
            other => panic!("{other:?}"),
        };
        // Already suspect, unless contact has returned after the doubt.
        let expected: &[&[Event<Reason>]] =
            if is_suspect { &[&[], &[Event::Suspect, Event::Restored]] } else { &[&[Event::Suspect]] };
        assert!(expected.contains(&doubts), "{doubts:?}");
    });
}

#[test]
fn a_loss_is_the_last_report_and_comes_after_the_acquisition() {
    explore(|| {
        let world = Reported::new();
        let (doubting, losing) = (Arc::clone(&world), Arc::clone(&world));
        let doubting = thread::spawn(move || doubting.suspect());
        let losing = thread::spawn(move || losing.lose());
        world.acquired();
        doubting.join().unwrap();
        assert!(losing.join().unwrap().is_some());
        let heard = world.heard.lock();
        let without_doubt = [Event::Acquired, Event::Abort("taken")];
        let with_doubt = [Event::Acquired, Event::Suspect, Event::Abort("taken")];
        assert!(**heard == without_doubt || **heard == with_doubt, "{heard:?}");
    });
}

#[test]
fn a_waiter_for_the_end_is_woken() {
    let ends: [fn(&HoldState<Reason>) -> bool; 3] = [
        |hold| hold.lose("over"),
        |hold| hold.expire(10, "over") == Checked::Expired,
        |hold| hold.begin_release(|| 5, "over").is_ok() && hold.finish(Some("over")),
    ];
    for end in ends {
        explore(move || {
            let hold = Arc::new(HoldState::new(10));
            let ending = Arc::clone(&hold);
            let ended = thread::spawn(move || end(&ending));
            let mut watcher = None;
            let reason = block_on(poll_fn(|context| {
                hold.poll(&mut watcher, context, |phase| match phase {
                    Phase::Lost(reason) => Some(*reason),
                    _ => None,
                })
            }));
            assert_eq!(reason, "over");
            assert!(ended.join().unwrap());
        });
    }
}

#[test]
fn an_answer_that_comes_late_does_not_move_the_deadline_back() {
    explore(|| {
        let hold = HoldState::<Reason>::new(10);
        assert_eq!(hold.renew(20, || 5), Renewed::Extended);
        assert_eq!(hold.renew(15, || 6), Renewed::Extended);
        assert_eq!(hold.last_deadline(), 20);
    });
}
