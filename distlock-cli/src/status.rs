//! `distlock status`: shows who holds a lock, and who waits for it.

use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use distlock::LockClient;
use distlock::capabilities::{Capabilities, Inspection, Reach};
use distlock::status::{LockKind, LockStatus, Mode, Participant};
use humantime::FormattedDuration;
use serde_json::{Value, json};

use crate::arguments::{Common, Status};
use crate::condition::{self, Condition};
use crate::connection::{self, Address};
use crate::event::{milliseconds, with_head};
use crate::exit::{self, Ending, Failure};
use crate::list;
use crate::named::{Named, fencing_token, is_in_use};
use crate::participants;
use crate::report::{Report, write_output};
use crate::unknown;

/// Asks the backend and prints the answer.
pub(crate) async fn run(common: &Common, status: &Status, report: &Report) -> Result<Ending, Failure> {
    let Some(named) = status.named() else {
        let is_ours = |lock: &LockStatus| lock.holders.iter().chain(&lock.waiters).any(condition::is_ours);
        return list::print(common, "", is_ours, report).await;
    };
    let locks = Address::find(common)?.open(Duration::ZERO).await?;
    let output = output(&locks, named, status.once.as_deref(), common).await;
    connection::close(&locks).await;
    write_output(&output?)?;
    Ok(Ending::Code(exit::SUCCESS))
}

async fn output(
    locks: &LockClient,
    named: Named<'_>,
    slot: Option<&str>,
    common: &Common,
) -> Result<String, Failure> {
    let status = named.status(locks).await?;
    let slot = match slot {
        Some(slot) => Some((slot, locks.remembered(named.name, slot).await?)),
        None => None,
    };
    // A status does not fail because more cannot be known.
    let pause = match named.kind {
        LockKind::Semaphore => None,
        _ => locks.remembered(named.name, "").await.unwrap_or_default(),
    };
    if common.json {
        let mut object = to_json(named, &status, locks.capabilities());
        if let Some(pause) = pause {
            object["pause_ms"] = json!(milliseconds(pause));
        }
        if let Some((slot, left)) = slot {
            object["slot"] =
                json!({ "slot": slot, "has_run": left.is_some(), "remembered_ms": left.map(milliseconds) });
        }
        return Ok(format!("{object}\n"));
    }
    let mut text = to_text(named, &status, locks.capabilities(), SystemTime::now());
    if !is_in_use(&status)
        && let Some(hint) = named.hint(locks).await
    {
        text = format!("{named} is free ({hint})\n");
    }
    if let Some(left) = pause.map(shown) {
        text = format!("{text}with --at-least it is kept free for {left} more\n");
    }
    match slot {
        Some((slot, Some(left))) => {
            Ok(format!("{text}slot {slot:?} has run; it is remembered for {} more\n", shown(left)))
        }
        Some((slot, None)) => Ok(format!("{text}slot {slot:?} has not run\n")),
        None => Ok(text),
    }
}

pub(crate) fn shown(left: Duration) -> FormattedDuration {
    humantime::format_duration(Duration::from_millis(milliseconds(left)))
}

pub(crate) fn to_json(named: Named<'_>, status: &LockStatus, capabilities: &Capabilities) -> Value {
    let mut object = with_head(
        &[("name", named.name)],
        json!({
            "held": status.is_held(),
            "holders": participants::to_json(&status.holders),
            "waiters": participants::to_json(&status.waiters),
        }),
    );
    if named.kind == LockKind::Semaphore {
        object["size"] = json!(size(status));
        object["free_permits"] = json!(status.free_permits());
    }
    if let Some(remaining) = status.remaining {
        object["remaining_ms"] = json!(milliseconds(remaining));
    }
    let unknown = unknown::of(status, capabilities);
    if !unknown.is_empty() {
        object["unknown"] = json!(unknown.iter().map(|(key, _)| key).collect::<Vec<_>>());
    }
    object
}

pub(crate) fn to_text(
    named: Named<'_>,
    status: &LockStatus,
    capabilities: &Capabilities,
    now: SystemTime,
) -> String {
    let mut lines = Vec::new();
    if status.holders.is_empty() {
        lines.push(format!("{named} is free"));
    }
    for holder in &status.holders {
        lines.push(format!("{named} {} {}", is_held(holder.mode), participants::describe(holder, now)));
        lines.extend(details(holder, capabilities).map(|detail| format!("  {detail}")));
    }
    if let Some(remaining) = status.remaining.filter(|_| status.is_held()) {
        let remaining = shown(remaining);
        let whose = if status.holders.len() > 1 { "the last of their leases" } else { "its lease" };
        lines.push(format!("  {whose} ends in {remaining} unless it is renewed"));
    }
    if let (Some(free), Some(size)) = (status.free_permits(), size(status)) {
        lines.push(format!("{free} of {size} permits are free"));
    }
    if !status.waiters.is_empty() {
        lines.push(format!("{} waiting, the next one first:", status.waiters.len()));
    }
    let mut participants = status.holders.iter().chain(&status.waiters);
    let is_shared = participants.any(|participant| participant.mode != Mode::Exclusive);
    for (position, waiter) in status.waiters.iter().enumerate() {
        let wanted = if is_shared { format!("{}: ", wanted(waiter.mode)) } else { String::new() };
        lines.push(format!("  {}. {wanted}{}", position + 1, participants::describe(waiter, now)));
    }
    if status.is_held() && unknown::has_hidden_waiters(capabilities) {
        lines.push(format!("not known: {}", unknown::WAITERS.1));
    }
    lines.join("\n") + "\n"
}

pub(crate) fn is_held(mode: Mode) -> String {
    match mode {
        Mode::Shared => "is shared by".to_owned(),
        Mode::Permits { take: NonZeroU32::MIN, .. } => "has given 1 permit to".to_owned(),
        Mode::Permits { take, .. } => format!("has given {take} permits to"),
        _ => "is held by".to_owned(),
    }
}

fn wanted(mode: Mode) -> String {
    match mode {
        Mode::Permits { take: NonZeroU32::MIN, .. } => "1 permit".to_owned(),
        Mode::Permits { take, .. } => format!("{take} permits"),
        mode => participants::word_for(mode).to_owned(),
    }
}

/// How many permits there are, if the server knows.
fn size(status: &LockStatus) -> Option<NonZeroU32> {
    status.holders.iter().chain(&status.waiters).find_map(|participant| match participant.mode {
        Mode::Permits { of, .. } => Some(of),
        _ => None,
    })
}

fn details(holder: &Participant, capabilities: &Capabilities) -> impl Iterator<Item = String> {
    let left_behind = (Condition::of(holder) == Some(Condition::Gone)).then(|| match capabilities.reach {
        Reach::Network => "the server keeps the lock until it notices that".to_owned(),
        _ => "processes that it started still keep the lock".to_owned(),
    });
    let unknown = (capabilities.inspection == Inspection::Sessions && holder.pid.is_none())
        .then(|| "the server knows the connection that holds it, and not whose that is".to_owned());
    let token = fencing_token(holder.token, holder.mode).map(|token| format!("token {token}"));
    let value = holder.value.as_ref().map(|value| format!("value {value:?}"));
    let id = format!("id {}", participants::printable(holder.id.as_str()));
    left_behind.into_iter().chain(unknown).chain(token).chain(value).chain([id])
}

#[cfg(test)]
mod tests {
    use distlock::capabilities::Reach;
    use distlock::spi::{CharacterSet, NameRules};
    use distlock::status::{HolderId, HolderInfo};
    use distlock::{FencingToken, LockName};

    use super::*;

    fn capabilities() -> Capabilities {
        Capabilities::new("test", Reach::Machine, NameRules::new(CharacterSet::of(|_| true), 64))
    }

    fn status() -> LockStatus {
        let mut info = HolderInfo::of_this_process();
        (info.host, info.pid, info.origin) = ("cache-1".to_owned(), 4711, None);
        let since = SystemTime::UNIX_EPOCH + Duration::from_millis(86_400_250);
        let holder = Participant::new(HolderId::new("7f"))
            .with_info(&info)
            .with_token(Some(FencingToken::new(12)))
            .with_since(since);
        let mut status = LockStatus::free(LockName::new("a").unwrap());
        status.holders.push(holder);
        status.waiters.push(Participant::new(HolderId::new("80")));
        status.remaining = Some(Duration::from_millis(2500));
        status
    }

    #[test]
    fn people_read_holder_lease_and_queue() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(86_460);
        assert_eq!(
            to_text(Named::lock("a"), &status(), &capabilities(), now),
            "lock \"a\" is held by pid 4711 on cache-1 since 1970-01-02 00:00:00 UTC (59s ago)\n  token 12\n  id 7f\n  \
             its lease ends in 2s 500ms unless it is renewed\n1 waiting, the next one first:\n  1. holder 80\n"
        );
        assert_eq!(
            to_text(Named::lock("a"), &LockStatus::free(LockName::new("a").unwrap()), &capabilities(), now),
            "lock \"a\" is free\n"
        );
    }

    #[test]
    fn people_read_why_so_little_is_known_of_a_holder() {
        let mut status = LockStatus::free(LockName::new("a").unwrap());
        let mut holder = Participant::new(HolderId::new("connection 7"));
        holder.host = Some("10.0.0.7".to_owned());
        status.holders.push(holder);
        let sessions = capabilities().with_inspection(Inspection::Sessions);
        let text = to_text(Named::lock("a"), &status, &sessions, SystemTime::UNIX_EPOCH);
        assert_eq!(
            text,
            "lock \"a\" is held by a client on 10.0.0.7\n  the server knows the connection that holds it, and not whose \
             that is\n  id connection 7\n"
        );
        status.holders[0].pid = Some(4711);
        assert!(
            !to_text(Named::lock("a"), &status, &sessions, SystemTime::UNIX_EPOCH)
                .contains("the server knows")
        );
    }

    #[test]
    fn machines_read_the_same() {
        let json = to_json(Named::lock("a"), &status(), &capabilities());
        assert_eq!(json["held"], true);
        assert_eq!(json["holders"][0]["token"], "12");
        assert_eq!(json["holders"][0]["since"], "1970-01-02T00:00:00.250Z");
        assert_eq!(json["waiters"][0]["id"], "80");
        assert_eq!(json["remaining_ms"], 2500);
        let free = to_json(Named::lock("a"), &LockStatus::free(LockName::new("a").unwrap()), &capabilities());
        assert_eq!(free.to_string(), r#"{"name":"a","held":false,"holders":[],"waiters":[]}"#);
    }
}
