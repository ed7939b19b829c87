//! `distlock watch`: prints what changes at the locks of a server.

use std::time::{Duration, SystemTime};

use distlock::LockClient;
use distlock::status::{ChangeKind, LockChange};
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

/// Prints until a signal ends it, or until the reader of its output has gone.
pub(crate) async fn run(common: &Common, watch: &Watch, report: &Report) -> Result<Ending, Failure> {
    let work = async |locks: &LockClient, signals: &mut Signals| {
        until_unwanted(signals, follow(locks, watch, common.json)).await
    };
    Address::find(common)?.work_with(None, Duration::ZERO, report, work).await
}

async fn follow(locks: &LockClient, arguments: &Watch, json: bool) -> Result<(), Failure> {
    let mut watch = locks.scoped(&arguments.prefix).watch(arguments.interval);
    loop {
        let (changes, now) = (watch.changes().await?, SystemTime::now());
        let lines =
            changes.iter().map(|change| if json { to_json(change, now) } else { to_text(change, now) });
        if !print(lines.collect()).await? {
            return Ok(());
        }
    }
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
        "time": humantime::format_rfc3339_millis(now).to_string(),
        "client": ParticipantJson::from(&change.participant),
    });
    format!("{}\n", with_head(&[("event", event), ("name", change.name.as_str())], details))
}
