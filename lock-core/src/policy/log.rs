//! All log messages about locks, in one place, so that each event always has the same fields. What takes time to find out
//! is found out in the macro, which does so only if the message is written.
//!
//! Everything that distlock logs, in every crate, has the target `distlock`. The crate's documentation lists the
//! events.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::time::Duration;

use tracing::Span;
use tracing::field::{DisplayValue, Empty, debug as debug_value, display};

use crate::policy::client_lock::ClientLock;
use crate::policy::hold::Hold;
use crate::runtime::log::log;
use crate::runtime::waker::catch_panic;
use crate::runtime::{Moment, OnDrop, WaitOutcome};
use crate::types::{FencingToken, HolderInfo, LockError, LockName, LossReason, Mode};

/// The span of the work that is done for a lock at the server.
/// A span. Like a record, it changes nothing of what happens inside, whatever its subscriber does.
pub(super) struct Trace(Span);

impl Trace {
    fn new(make: impl FnOnce() -> Span) -> Self {
        Self(catch_panic(make).unwrap_or_else(Span::none))
    }

    pub(super) fn enter(&self) -> OnDrop<impl FnMut()> {
        let mut entered = catch_panic(|| self.0.enter());
        OnDrop(move || {
            catch_panic(|| drop(entered.take()));
        })
    }

    pub(super) async fn around<F: Future>(&self, mut future: Pin<&mut F>) -> F::Output {
        poll_fn(|context| {
            let _inside = self.enter();
            future.as_mut().poll(context)
        })
        .await
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        catch_panic(|| drop(std::mem::replace(&mut self.0, Span::none())));
    }
}

pub(super) fn span(lock: &LockName) -> Trace {
    Trace::new(|| tracing::debug_span!(target: "distlock", "lock", name = %lock))
}

/// Adds to the span of a wait how it has ended.
pub(super) fn wait_ended(
    Trace(span): &Trace,
    outcome: WaitOutcome,
    token: Option<FencingToken>,
    waited: impl Fn() -> Duration,
) {
    if !span.is_disabled() {
        catch_panic(|| {
            span.record("outcome", outcome.word()).record("waited", debug_value(waited()));
            span.record("token", token.map(display));
        });
    }
}

/// A lock at a server.
impl ClientLock {
    /// The span of a call that acquires a lock.
    pub(super) fn wait_span(&self, mode: Mode) -> Trace {
        Trace::new(|| {
            tracing::info_span!(
                target: "distlock",
                "acquire", lock = %self.name(), ?mode, server = %self.server(),
                outcome = Empty, waited = Empty, token = Empty
            )
        })
    }

    pub(super) fn log_waiting(&self, holder: &HolderInfo) {
        let server = self.server();
        log!(debug, lock = %self.name(), %holder, %server, "waiting");
    }

    pub(super) fn log_granted(
        &self,
        holder: &HolderInfo,
        token: Option<FencingToken>,
        waited: impl Fn() -> Duration,
    ) {
        log!(debug, lock = %self.name(), %holder, token = token.map(display), waited = ?waited(),
            server = %self.server(), "granted"
        );
    }

    pub(super) fn log_not_granted(&self, waited: impl Fn() -> Duration, why: &dyn fmt::Display) {
        let server = self.server();
        log!(debug, lock = %self.name(), %why, waited = ?waited(), %server, "not granted");
    }

    /// A grant was lost before its waiter had it, and another attempt follows. A single loss is not logged. From the
    /// second in a row it is a warning, which becomes rarer the longer this goes on.
    pub(super) fn log_lost_unseen(&self, reason: LossReason, in_a_row: u32) {
        if in_a_row < 2 || !in_a_row.is_power_of_two() {
            return;
        }
        let remedy = match reason {
            LossReason::Expired => {
                "lengthen the lease or max_hold, or find out why the server's answer or this process is so late"
            }
            _ => "find out at the server who takes or deletes what stands for the lock, or ends its session",
        };
        log!(warn, lock = %self.name(), %reason, in_a_row, remedy, server = %self.server(),
            "a grant was lost before its waiter had it; the attempt is repeated"
        );
    }

    /// A request for the lock has failed, and is repeated.
    pub(super) fn log_repeated(&self, what: &'static str, error: &LockError) {
        log!(debug, lock = %self.name(), %error, server = %self.server(), "{what}");
    }

    /// The client ends, and may leave data of the lock at the server.
    pub(super) fn log_given_up(&self) {
        log!(warn, lock = %self.name(), server = %self.server(),
            "given up: the server has not answered, and the client ends; what is left of the lock ends with the lease, or with \
             the client's connection"
        );
    }
}

/// A hold of a lock at a server.
impl Hold {
    fn shown_token(&self) -> Option<DisplayValue<FencingToken>> {
        self.grant().token.map(display)
    }

    /// The span of a release, until the server has answered or the core stops waiting.
    pub(super) fn release_span(&self) -> Trace {
        Trace::new(|| {
            tracing::info_span!(
                target: "distlock",
                "release", lock = %self.name(), token = self.shown_token(), held = ?self.held_for(), server = %self.server()
            )
        })
    }

    pub(super) fn log_suspect(&self) {
        log!(warn, lock = %self.name(), token = self.shown_token(), remaining = self.remaining().map(debug_value),
            server = %self.server(), "suspect: contact is lost, and the lock is still held"
        );
    }

    pub(super) fn log_restored(&self) {
        log!(info, lock = %self.name(), token = self.shown_token(), server = %self.server(),
            "restored: contact has returned, and the lock was held throughout"
        );
    }

    pub(super) fn log_lost(&self, reason: LossReason, was_known: bool) {
        let (lock, token, held, server) = (self.name(), self.shown_token(), self.held_for(), self.server());
        if !was_known {
            // It does not affect the owner.
            log!(debug, %lock, token, %reason, %server, "lost before its waiter had it");
        } else if reason == LossReason::ClientClosed {
            log!(warn, %lock, token, %reason, ?held, %server, "lost");
        } else {
            log!(error, %lock, token, %reason, ?held, %server, "lost");
        }
    }

    pub(super) fn log_released(&self, found_lost: Option<LossReason>) {
        log!(debug, lock = %self.name(), token = self.shown_token(), held = ?self.held_for(),
            found_lost = found_lost.map(display), server = %self.server(), "released"
        );
    }
}

/// How many names of locks one line contains.
const NAMES: usize = 3;

/// How often failed renewals are logged as a warning, for each group.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Renewals of a group have failed: a warning, which comes again `from` then on.
pub(super) fn renewals_failed(from: &mut Moment, locks: &[&LockName], why: &str, server: &str, now: Moment) {
    let names: Vec<_> = locks.iter().take(NAMES).map(|name| name.as_str()).collect();
    let locks = locks.len();
    if now >= *from {
        *from = now.plus(WARN_EVERY);
        log!(warn, locks, ?names, error = %why, %server, "renewals failed");
    } else {
        log!(debug, locks, ?names, error = %why, %server, "renewals failed");
    }
}
