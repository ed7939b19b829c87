//! What the log says of locks, in one place, so that each event has the same fields wherever it comes from.
//!
//! Everything that distlock logs, in whatever crate, has the target `distlock`. The crate's documentation lists the events.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tracing::field::display;
use tracing::{Span, debug, error, info, warn};

use crate::client::ClientCore;
use crate::clock::Moment;
use crate::front::Front;
use crate::hold::reports::Known;
use crate::hold::{Hold, HoldCore, LossReason};

/// The span of what is done for a lock at the server.
pub(crate) fn span(front: &Front) -> Span {
    tracing::debug_span!(target: "distlock", "lock", name = %front.name())
}

pub(crate) fn waiting(front: &Front) {
    let client = front.client();
    debug!(target: "distlock", lock = %front.name(), holder = %Holder(client), server = %client.server, "waiting");
}

pub(crate) fn granted(hold: &HoldCore, since: Moment) {
    let (front, client) = (&hold.front, hold.front.client());
    let waited = client.clock.now().since(since);
    debug!(
        target: "distlock",
        lock = %front.name(), holder = %Holder(client), token = hold.grant.token.map(display), ?waited,
        server = %client.server, "granted"
    );
}

pub(crate) fn not_granted(front: &Front, since: Moment, why: &dyn fmt::Display) {
    let waited = front.clock().now().since(since);
    debug!(
        target: "distlock",
        lock = %front.name(), %why, ?waited, server = %front.client().server, "not granted"
    );
}

pub(crate) fn suspect(hold: &Arc<HoldCore>) {
    warn!(
        target: "distlock",
        lock = %hold.front.name(), token = hold.grant.token.map(display),
        remaining = Hold(Arc::clone(hold)).remaining().map(tracing::field::debug),
        server = %hold.front.client().server, "suspect: contact is lost, and the lock is still held"
    );
}

pub(crate) fn restored(hold: &HoldCore) {
    info!(
        target: "distlock",
        lock = %hold.front.name(), token = hold.grant.token.map(display), server = %hold.front.client().server,
        "restored: contact has returned, and the lock was held throughout"
    );
}

/// A loss that the owner never knew of costs it nothing.
pub(crate) fn lost(hold: &Arc<HoldCore>, reason: LossReason, known: Known) {
    let (front, token) = (&hold.front, hold.grant.token.map(display));
    let (server, age) = (&front.client().server, Hold(Arc::clone(hold)).age());
    match known {
        Known::Yes => {
            error!(target: "distlock", lock = %front.name(), token, %reason, held = ?age, %server, "lost");
        }
        Known::NotYet => {
            debug!(target: "distlock", lock = %front.name(), token, %reason, %server, "lost before its waiter had it");
        }
    }
}

/// A grant was lost before its waiter had it, and another attempt follows. Once is bad luck; from the second in a row on it is a
/// warning, and a rarer one the longer that goes on.
pub(crate) fn lost_unseen(front: &Front, reason: LossReason, in_a_row: u32) {
    if in_a_row < 2 || !in_a_row.is_power_of_two() {
        return;
    }
    let remedy = match reason {
        LossReason::Expired => {
            "lengthen the lease or max_hold, or find out why the server's answer or this process is so late"
        }
        _ => "find out at the server who takes or deletes what stands for the lock, or ends its session",
    };
    warn!(
        target: "distlock",
        lock = %front.name(), %reason, in_a_row, remedy, server = %front.client().server,
        "a grant was lost before its waiter had it; the attempt is repeated"
    );
}

/// The client ends, and what stands for the lock may be left at the server.
pub(crate) fn given_up(front: &Front) {
    warn!(
        target: "distlock",
        lock = %front.name(), server = %front.client().server,
        "given up: the server has not answered, and the client ends; what is left of the lock ends with the lease, or with the \
         client's connection"
    );
}

pub(crate) fn released(hold: &Arc<HoldCore>, loss: Option<LossReason>) {
    debug!(
        target: "distlock",
        lock = %hold.front.name(), token = hold.grant.token.map(display), held = ?Hold(Arc::clone(hold)).age(), found_lost = loss.map(display),
        server = %hold.front.client().server, "released"
    );
}

/// How many names of locks stand in one line.
const NAMES: usize = 3;

/// How often renewals that fail are a warning, in each group.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// What has been said of the renewals of a group.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    /// From when on a failure is a warning again.
    warn_from: Option<Moment>,
}

impl Renewals {
    pub(crate) fn failed(&mut self, client: &ClientCore, holds: &[&Arc<HoldCore>], why: &dyn fmt::Display) {
        if holds.is_empty() {
            return;
        }
        let names: Vec<_> = holds.iter().take(NAMES).map(|hold| hold.front.name().as_str()).collect();
        let (locks, server, now) = (holds.len(), &client.server, client.clock.now());
        if self.warn_from.is_none_or(|from| now >= from) {
            self.warn_from = Some(now.plus(WARN_EVERY));
            warn!(target: "distlock", locks, ?names, error = %why, %server, "renewals failed");
        } else {
            debug!(target: "distlock", locks, ?names, error = %why, %server, "renewals failed");
        }
    }
}

/// How a client calls itself in the log.
struct Holder<'a>(&'a ClientCore);

impl fmt::Display for Holder<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holder = &self.0.holder;
        if let Some(label) = &holder.label {
            write!(formatter, "{label}@")?;
        }
        write!(formatter, "{}:{}", holder.host, holder.pid)
    }
}
