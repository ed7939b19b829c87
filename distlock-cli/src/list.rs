//! `distlock list`: shows which locks are in use.

use std::time::{Duration, SystemTime};

use distlock::LockError;
use distlock::status::{LockKind, LockStatus};
use humantime::format_duration;

use crate::arguments::{Common, List};
use crate::connection::{self, Address};
use crate::exit::{self, Ending, Failure};
use crate::named::{Named, fencing_token};
use crate::participants::{self, whole_seconds};
use crate::report::{Report, write_output};
use crate::status::{is_held, shown, to_json};
use crate::unknown;

/// Prints the locks that the arguments select.
pub(crate) async fn run(common: &Common, list: &List, report: &Report) -> Result<Ending, Failure> {
    let is_wanted =
        |lock: &LockStatus| (!list.held || lock.is_held()) && (!list.waiting || !lock.waiters.is_empty());
    print(common, &list.prefix, is_wanted, report).await
}

/// Asks the backend and prints the answer: one lock on each line.
pub(crate) async fn print(
    common: &Common,
    prefix: &str,
    is_wanted: impl Fn(&LockStatus) -> bool,
    report: &Report,
) -> Result<Ending, Failure> {
    let locks = Address::find(common)?.open(Duration::ZERO).await?;
    let found = locks.scoped(prefix).list().await;
    connection::close(&locks).await;
    let found = found?;
    let (now, capabilities) = (SystemTime::now(), locks.capabilities());
    let line = |lock: &LockStatus| {
        let named = named(lock);
        if common.json { to_json(named, lock, capabilities).to_string() } else { to_text(named, lock, now) }
    };
    let mut lines: Vec<_> = found.locks.iter().filter(|lock| is_wanted(lock)).map(line).collect();
    if lines.is_empty() && !common.json {
        let is_filtered = !prefix.is_empty() || !found.locks.is_empty();
        lines.push(format!("no {}lock is in use", if is_filtered { "such " } else { "" }));
    }
    // Also of those that are left out: one may be wanted for waiters that are not shown.
    let unknown = found.locks.iter().flat_map(|lock| unknown::of(lock, capabilities));
    lines.extend(unknown::line(unknown).filter(|_| !common.json));
    // Each line ends.
    lines.push(String::new());
    write_output(&lines.join("\n"))?;
    Ok(end(&found.failures, report))
}

/// Says at which locks the backend could not look.
pub(crate) fn end(failures: &[LockError], report: &Report) -> Ending {
    for error in failures {
        report.failure(&Failure::from(error.clone()));
    }
    Ending::Code(if failures.is_empty() { exit::SUCCESS } else { exit::WARNINGS })
}

pub(crate) fn named(lock: &LockStatus) -> Named<'_> {
    let kind = lock.holders.iter().chain(&lock.waiters).next().map_or(LockKind::Lock, |one| one.mode.kind());
    Named { name: lock.name.as_str(), kind }
}

fn to_text(named: Named<'_>, lock: &LockStatus, now: SystemTime) -> String {
    let mut parts = vec!["is free".to_owned()];
    if let Some(first) = lock.holders.first() {
        parts = vec![format!("{} {}", is_held(first.mode), participants::describe_all(&lock.holders, now))];
        parts.extend(fencing_token(first.token, first.mode).map(|token| format!("token {token}")));
        parts.extend(first.value.as_ref().map(|value| format!("value {value:?}")));
        parts.extend(lock.remaining.map(|left| format!("its lease ends in {}", shown(left))));
    }
    if let Some(first) = lock.waiters.first() {
        let since = first.since.and_then(|since| now.duration_since(since).ok()).map(whole_seconds);
        let longest = since.map(|since| format!(", the first for {}", format_duration(since)));
        parts.push(format!("{} waiting{}", lock.waiters.len(), longest.unwrap_or_default()));
    }
    format!("{named} {}", parts.join("; "))
}
