//! `distlock elect --watch`: prints the leader of an election, and again at each change.

use std::time::{Duration, SystemTime};

use distlock::election::LeaderWatch;
use distlock::status::Participant;
use distlock::{LockClient, LockError};
use serde_json::json;

use crate::arguments::{Common, Elect};
use crate::connection::Address;
use crate::event::with_head;
use crate::exit::{Ending, Failure};
use crate::participants;
use crate::printing::{print, until_unwanted};
use crate::report::Report;
use crate::signals::Signals;
use crate::wait::interrupted;

/// Prints until a signal ends it, or until the reader of its output has gone.
pub(crate) async fn run(common: &Common, elect: &Elect, report: &Report) -> Result<Ending, Failure> {
    let address = Address::find(common)?;
    let work =
        async |locks: &LockClient, signals: &mut Signals| run_with(locks, elect, signals, report).await;
    address.work_with(None, Duration::ZERO, report, work).await
}

async fn run_with(
    locks: &LockClient,
    elect: &Elect,
    signals: &mut Signals,
    report: &Report,
) -> Result<Ending, Failure> {
    let election = locks.election(&elect.name)?;
    let watch = tokio::select! {
        watch = election.observe() => watch?,
        signal = signals.next() => return Ok(interrupted(signal)),
    };
    until_unwanted(signals, follow(watch, &elect.name, report)).await
}

async fn follow(mut watch: LeaderWatch, name: &str, report: &Report) -> Result<(), Failure> {
    let mut leader = watch.leader();
    loop {
        let seen = leader.as_ref();
        let line = if report.is_json() { to_json(name, seen) } else { to_text(name, seen) };
        if !print(line).await? {
            return Ok(());
        }
        leader = other_than(leader, &mut watch).await?;
    }
}

/// Waits for another leader than this one.
async fn other_than(
    known: Option<Participant>,
    watch: &mut LeaderWatch,
) -> Result<Option<Participant>, LockError> {
    loop {
        let leader = watch.changed().await?;
        if leader != known {
            return Ok(leader);
        }
    }
}

fn to_text(name: &str, leader: Option<&Participant>) -> String {
    match leader {
        Some(leader) => {
            format!(
                "election {name:?} is led by {}\n",
                participants::describe_leader(leader, SystemTime::now())
            )
        }
        None => format!("election {name:?} has no leader\n"),
    }
}

fn to_json(name: &str, leader: Option<&Participant>) -> String {
    let leader = json!({ "leader": leader.map(participants::ParticipantJson::of_leader) });
    format!("{}\n", with_head(&[("event", "leader"), ("name", name)], leader))
}

#[cfg(test)]
mod tests {
    use distlock::FencingToken;
    use distlock::status::HolderId;

    use super::*;

    #[test]
    fn a_leader_is_one_line() {
        let mut leader = Participant::new(HolderId::new("7f")).with_token(Some(FencingToken::new(18)));
        leader.value = Some("10.0.0.7:8080\n".to_owned());
        assert_eq!(
            to_text("a", Some(&leader)),
            "election \"a\" is led by holder 7f, term 18, value \"10.0.0.7:8080\\n\"\n"
        );
        assert_eq!(
            to_json("a", Some(&leader)),
            concat!(
                r#"{"event":"leader","name":"a","leader":{"id":"7f","token":"18","host":null,"pid":null,"#,
                r#""label":null,"value":"10.0.0.7:8080\n","since":null}}"#,
                "\n"
            )
        );
        assert_eq!(to_text("a", None), "election \"a\" has no leader\n");
        assert_eq!(to_json("a", None), "{\"event\":\"leader\",\"name\":\"a\",\"leader\":null}\n");
    }
}
