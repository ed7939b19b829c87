//! Tests of the stream of a client's events.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::support::{ByHand, LEASE, SOON, Timed, advance_to_next, eventually, name};
use futures_core::Stream;
use lock_core::{FencingToken, Hold, HoldEnd, LockEvent, LockEvents, LossReason};
use lock_memory::{Loss, MemoryServer, Told as Notice};

/// Returns the next event, or `None` at the end.
async fn next(events: &mut LockEvents) -> Option<LockEvent> {
    tokio::time::timeout(SOON, events.next()).await.expect("there is an event")
}

/// Describes an event in a few words.
fn short(event: &LockEvent) -> String {
    let of = |hold: &Hold| format!("{} {:?}", hold.name(), hold.token().map(FencingToken::get));
    match event {
        LockEvent::Acquired { hold } => format!("acquired {}", of(hold)),
        LockEvent::Suspect { hold } => format!("suspect {}", of(hold)),
        LockEvent::Restored { hold } => format!("restored {}", of(hold)),
        LockEvent::Lost { hold, reason } => format!("lost {} {reason:?}", of(hold)),
        LockEvent::Released { hold } => format!("released {}", of(hold)),
        other => format!("{other:?}"),
    }
}

async fn next_is(events: &mut LockEvents, expected: &str) {
    assert_eq!(next(events).await.as_ref().map(short).as_deref(), Some(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_has_each_event_with_its_hold_in_order_and_ends_with_close() {
    let timed = Timed::new();
    let mut events = timed.client.events();
    let guard = timed.client.mutex("a").unwrap().acquire().await.unwrap();
    let other = timed.client.mutex("b").unwrap().acquire().await.unwrap();
    next_is(&mut events, "acquired a Some(1)").await;
    next_is(&mut events, "acquired b Some(2)").await;
    other.release().await.unwrap();
    next_is(&mut events, "released b Some(2)").await;
    timed.server.faults().sever();
    timed.time.advance(LEASE / 3);
    next_is(&mut events, "suspect a Some(1)").await;
    let remaining = guard.hold().remaining();
    timed.server.faults().heal();
    let end = timed.clock.now().plus(LEASE / 3);
    eventually("it is renewed", || {
        advance_to_next(&timed.time, end);
        guard.hold().remaining() > remaining
    })
    .await;
    next_is(&mut events, "restored a Some(1)").await;
    assert!(timed.server.lose(&name("a"), Loss::Delete, Notice::AtOnce));
    let lost = next(&mut events).await.unwrap();
    assert_eq!(short(&lost), "lost a Some(1) Deleted");
    assert_eq!(lost.hold().unwrap().end(), Some(HoldEnd::Lost(LossReason::Deleted)));
    timed.client.mutex("a").unwrap().acquire().await.unwrap().release().await.unwrap();
    drop(guard);
    timed.client.close(SOON).await.unwrap();
    next_is(&mut events, "acquired a Some(3)").await;
    next_is(&mut events, "released a Some(3)").await;
    assert!(next(&mut events).await.is_none());
    assert!(next(&mut events).await.is_none());
    assert!(
        next(&mut timed.client.events()).await.is_none(),
        "a stream of a client that is closed has an end"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_close_takes_and_gives_up_is_in_the_stream_before_its_end() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let mut events = client.events();
    let dropped = client.mutex("dropped").unwrap().acquire().await.unwrap();
    let _held = client.mutex("held").unwrap().acquire().await.unwrap();
    server.faults().sever();
    drop(dropped);
    client.close(Duration::ZERO).await.unwrap_err();
    next_is(&mut events, "acquired dropped Some(1)").await;
    next_is(&mut events, "acquired held Some(2)").await;
    next_is(&mut events, "lost held Some(2) ClientClosed").await;
    next_is(&mut events, "released dropped Some(1)").await;
    assert!(next(&mut events).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_ends_with_its_client_and_does_not_keep_it() {
    let client = MemoryServer::new().client().unwrap();
    let mut events = client.events();
    client.mutex("a").unwrap().acquire().await.unwrap().release().await.unwrap();
    drop(client);
    next_is(&mut events, "acquired a Some(1)").await;
    next_is(&mut events, "released a Some(1)").await;
    assert!(next(&mut events).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_dropped_takes_no_event_with_it() {
    let client = MemoryServer::new().client().unwrap();
    let mut events = client.events();
    let waiting = ByHand::begun(events.next());
    let guard = client.mutex("a").unwrap().acquire().await.unwrap();
    waiting.woken().await;
    drop(waiting);
    next_is(&mut events, "acquired a Some(1)").await;
    let mut context = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut events).poll_next(&mut context).is_pending());
    guard.release().await.unwrap();
    // The waker of the last poll is no longer waited for: another future is.
    next_is(&mut events, "released a Some(1)").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_losses_at_once_are_all_in_a_stream_that_is_not_read() {
    const LOCKS: usize = 10_000;
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let mut events = client.events();
    let mut guards = Vec::new();
    for number in 0..LOCKS {
        guards.push(client.mutex(format!("lock {number}")).unwrap().acquire().await.unwrap());
    }
    for guard in &guards {
        assert!(server.lose(guard.hold().name(), Loss::Delete, Notice::AtOnce));
    }
    for guard in &guards {
        let event = next(&mut events).await.unwrap();
        assert!(matches!(&event, LockEvent::Acquired { hold } if hold.name() == guard.hold().name()));
    }
    for guard in &guards {
        let event = next(&mut events).await.unwrap();
        assert!(
            matches!(&event, LockEvent::Lost { hold, .. } if hold.name() == guard.hold().name()),
            "{event:?}"
        );
    }
}
