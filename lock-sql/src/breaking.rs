//! Breaks holds: ends the session of a holder, and waits until the lock is free.

use std::time::Duration;

use lock_core::spi::within;
use lock_core::{Broken, ErrorKind, HolderId, InspectRequest, LockError, LockName, Operation};

use crate::backend::STATEMENTS;
use crate::client::Client;
use crate::dialect::Dialect;

/// The pause between two checks whether a session has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A busy server takes its time to end a session, and a break has no lease that runs out meanwhile.
const SHORTEST_TIME: Duration = Duration::from_secs(10);

/// How much of a lease a break waits for. A server may shut the socket of a session that is about to read from it, which then never
/// learns that it was killed: it lives on, with its locks, until its lease ends, and another command does nothing.
const LONGEST_LEASE_TO_WAIT: Duration = Duration::from_mins(1);

/// After this many checks a session that still has the lock gets the command to end once more: some servers miss it if the session
/// goes back to reading at that very moment.
const LOOKS_BEFORE_ANOTHER_END: u32 = 20;

/// The check after which the command is not repeated: later it would sooner hit another hold of the session than help.
const LAST_END: u32 = 200;

pub(crate) async fn break_holder<D: Dialect>(
    client: &Client<D>,
    request: &InspectRequest,
    holder: &HolderId,
) -> Result<Broken, LockError> {
    let settings = &client.settings;
    let key = settings.dialect.key(request.name(), request.physical(), request.kind())?;
    let limit = (settings.request_timeout * STATEMENTS).max(SHORTEST_TIME);
    let ending = end_session_of(client, &key, holder);
    let (broken, found) = settings.in_time(limit, Operation::Break, ending).await?;
    let Some(found) = found else { return Ok(broken) };
    // The lease of the holder is not known; it is likely the same.
    let deadline = settings.clock().now().plus(limit + settings.server.lease.min(LONGEST_LEASE_TO_WAIT));
    let freed = within(settings.clock(), deadline, freed(client, &key, &found)).await;
    freed.map(|()| broken).ok_or_else(|| still_ending(request.name()))
}

fn still_ending(name: &LockName) -> LockError {
    LockError::new(ErrorKind::Unconfirmed, Operation::Break)
        .on(name)
        .because("the server has accepted to end the holder's session, which has the lock nevertheless")
        .remedy("look again later: the server frees the lock at the latest when the holder's lease ends")
}

/// Returns what the break does, and what is to become free.
async fn end_session_of<D: Dialect>(
    client: &Client<D>,
    key: &D::Key,
    holder: &HolderId,
) -> Result<(Broken, Option<D::Found>), LockError> {
    let mut told = None;
    loop {
        match end_what_it_has(client, key, holder, &mut told).await {
            // Whether it was taken away shows when the server answers again.
            Err(error) if told.is_some() && error.kind() == ErrorKind::Unreachable => pause(client).await,
            outcome => return outcome,
        }
    }
}

/// Ends the session of the holder. Leaves in `told` what a command has done whose answer was lost, if it arrived.
async fn end_what_it_has<D: Dialect>(
    client: &Client<D>,
    key: &D::Key,
    holder: &HolderId,
    told: &mut Option<Broken>,
) -> Result<(Broken, Option<D::Found>), LockError> {
    let Some((found, also_lost)) = D::find_holder(client, key, holder).await? else {
        return Ok((told.take().unwrap_or_else(Broken::not_held), None));
    };
    let mut broken = Broken::taken_away();
    broken.also_lost = also_lost;
    match D::end_holder(client, key, &found).await {
        Ok(true) => Ok((broken, Some(found))),
        Ok(false) => Ok((told.take().unwrap_or_else(Broken::not_held), None)),
        Err(error) => {
            *told = Some(broken);
            Err(error)
        }
    }
}

/// Waits until the session no longer holds the lock. It is being ended by now: what fails is repeated.
async fn freed<D: Dialect>(client: &Client<D>, key: &D::Key, found: &D::Found) {
    for looks in 1_u32.. {
        if D::still_holds(client, key, found).await.is_ok_and(|holds| !holds) {
            return;
        }
        if looks.is_multiple_of(LOOKS_BEFORE_ANOTHER_END) && looks <= LAST_END {
            let _ = D::end_holder(client, key, found).await;
        }
        pause(client).await;
    }
}

async fn pause<D: Dialect>(client: &Client<D>) {
    let clock = client.settings.clock();
    clock.sleep_until(clock.now().plus(LOOK_EVERY)).await;
}
