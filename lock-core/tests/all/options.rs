//! Tests of the options of one lock.

use std::time::Duration;

use crate::support::{LEASE, Timed};
use lock_core::{ErrorKind, HoldEnd, LockOptions, LossReason, Mode};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_margin_of_ones_own_ends_the_hold_that_much_earlier_and_keeps_the_lock_meanwhile() {
    let timed = Timed::new();
    let careful = timed.client.mutex_with("room", LockOptions::new().abort_margin(2 * SECOND)).unwrap();
    let plain = timed.client.mutex("hall").unwrap().acquire().await.unwrap();
    let guard = careful.acquire().await.unwrap();
    let remaining = |guard: &lock_core::LockGuard| guard.hold().remaining().unwrap();
    assert_eq!(remaining(&plain), remaining(&guard) + 2 * SECOND);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lease_of_ones_own_outlasts_that_of_the_client() {
    let timed = Timed::new();
    let long = timed.client.mutex_with("room", LockOptions::new().lease(10 * LEASE)).unwrap();
    let guard = long.acquire().await.unwrap();
    assert!(guard.hold().remaining().unwrap() > 9 * LEASE);
    timed.server.faults().sever();
    timed.time.advance(2 * LEASE);
    assert!(guard.hold().is_valid(), "{:?}", guard.hold().end());
    timed.time.advance(8 * LEASE);
    assert_eq!(guard.lost().await, Some(LossReason::Expired));
}

#[tokio::test]
async fn the_longest_time_of_a_lock_replaces_that_of_its_client() {
    let timed = Timed::new();
    let client = timed
        .server
        .client_with(lock_memory::MemoryOptions::new(), Timed::builder(&timed.clock).max_hold(SECOND));
    let longer = client.unwrap().mutex_with("room", LockOptions::new().max_hold(3 * SECOND)).unwrap();
    let guard = longer.acquire().await.unwrap();
    timed.time.advance(2 * SECOND);
    assert!(guard.hold().is_valid());
    timed.time.advance(SECOND);
    assert_eq!(guard.lost().await, Some(LossReason::Expired));
    assert_eq!(guard.hold().end(), Some(HoldEnd::Lost(LossReason::Expired)));
}

#[tokio::test]
async fn a_lease_that_leaves_no_time_beside_the_margin_is_refused_before_anything_is_sent() {
    let timed = Timed::new();
    let options = LockOptions::new().lease(3 * SECOND).abort_margin(3 * SECOND);
    let error = timed.client.mutex_with("room", options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    assert!(error.to_string().contains("room"), "{error}");
}

#[tokio::test]
async fn readers_writers_and_permits_have_options_of_their_own() {
    let timed = Timed::new();
    let options = LockOptions::new().lease(10 * LEASE).label("import");
    let catalog = timed.client.rw_lock_with("catalog", options.clone()).unwrap();
    let slots = timed.client.semaphore_with("render", 3, options).unwrap();
    for side in [catalog.read(), catalog.write(), slots.permits(2).unwrap()] {
        let guard = side.acquire().await.unwrap();
        assert!(guard.hold().remaining().unwrap() > 9 * LEASE, "{guard:?}");
        let status = match guard.hold().mode() {
            Mode::Permits { .. } => slots.status().await.unwrap(),
            _ => timed.client.status("catalog").await.unwrap(),
        };
        assert_eq!(status.holders[0].label.as_deref(), Some("import"));
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn what_several_hold_is_kept_for_no_one() {
    let timed = Timed::new();
    let kept = LockOptions::new().at_least(SECOND);
    for error in [
        timed.client.rw_lock_with("room", kept.clone()).unwrap_err(),
        timed.client.semaphore_with("room", 3, kept).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidOption);
        assert!(error.to_string().contains("room") && error.to_string().contains("at_least"), "{error}");
    }
}
