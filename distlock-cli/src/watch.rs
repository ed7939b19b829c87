//! `distlock watch`: prints what changes at the locks of a server.

use std::time::{Duration, SystemTime};

use distlock::status::{ChangeKind, LockChange};
use distlock::{LockClient, LockError};
use serde_json::json;

use crate::arguments::{Common, Watch};
use crate::connection::Address;
use crate::event::with_head;
use crate::exit::{Ending, Failure};
use crate::named::Named;
use crate::participants::{self, ParticipantJson, moment};
use crate::printing::{print, until_unwanted};
use crate::report::Report;
use crate::signals::Signals;
use crate::unknown;

/// Prints until a signal ends it, or until the reader of its output has gone.
pub(crate) async fn run(common: &Common, watch: &Watch, report: &Report) -> Result<Ending, Failure> {
    let work = async |locks: &LockClient, signals: &mut Signals| {
        until_unwanted(signals, follow(locks, watch, common.json)).await
    };
    Address::find(common)?.work_with(None, Duration::ZERO, report, work).await
}

async fn follow(locks: &LockClient, arguments: &Watch, json: bool) -> Result<(), Failure> {
    let mut watch = locks.scoped(&arguments.prefix).watch(arguments.interval);
    let mut told = None;
    if unknown::has_hidden_waiters(locks.capabilities()) && !print(hidden(SystemTime::now(), json)).await? {
        return Ok(());
    }
    loop {
        let (changes, now, mut lines) = (watch.changes().await?, SystemTime::now(), Vec::new());
        let trouble = watch.trouble().map(|error| error.name().cloned());
        if trouble != told {
            lines.push(contact(watch.trouble(), now, json));
            told = trouble;
        }
        lines.extend(changes.iter().map(|one| if json { to_json(one, now) } else { to_text(one, now) }));
        if !print(lines.concat()).await? {
            return Ok(());
        }
    }
}

/// Why it cannot look at all locks, or that it can again.
fn contact(trouble: Option<&LockError>, now: SystemTime, json: bool) -> String {
    let message = trouble.map(ToString::to_string);
    if !json {
        let text =
            message.map_or("all can be looked at again".to_owned(), |why| format!("cannot look: {why}"));
        return format!("{} {text}\n", moment(now));
    }
    let mut head = vec![("event", if trouble.is_some() { "unreachable" } else { "reachable" })];
    head.extend(trouble.and_then(LockError::name).map(|name| ("name", name.as_str())));
    format!("{}\n", with_head(&head, json!({ "time": time(now), "message": message })))
}

/// What it does not show of any lock.
fn hidden(now: SystemTime, json: bool) -> String {
    let (key, words) = unknown::WAITERS;
    if !json {
        return format!("{} not shown: {words}\n", moment(now));
    }
    format!("{}\n", with_head(&[("event", "unknown")], json!({ "time": time(now), "unknown": [key] })))
}

fn time(now: SystemTime) -> String {
    humantime::format_rfc3339_millis(now).to_string()
}

fn to_text(change: &LockChange, now: SystemTime) -> String {
    let who = participants::describe(&change.participant, now);
    let what = match change.kind {
        ChangeKind::Waiting => format!("is waited for by {who}"),
        ChangeKind::Granted => format!("is held by {who}"),
        ChangeKind::Ended => format!("is held no more by {who}"),
        _ => format!("is waited for no more by {who}"),
    };
    format!("{} {} {what}\n", moment(now), Named::in_mode(change.name.as_str(), change.participant.mode))
}

fn to_json(change: &LockChange, now: SystemTime) -> String {
    let event = match change.kind {
        ChangeKind::Waiting => "waiting",
        ChangeKind::Granted => "granted",
        ChangeKind::Ended => "ended",
        _ => "left",
    };
    let details = json!({
        "time": time(now),
        "client": ParticipantJson::from(&change.participant),
    });
    format!("{}\n", with_head(&[("event", event), ("name", change.name.as_str())], details))
}
