//! The events while a lock is waited for or held, each as JSON and as a sentence.

use std::time::{Duration, SystemTime};

use distlock::status::{Mode, Participant};
use distlock::{FencingToken, Hold, LossReason};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Map, Value, json};

use crate::condition::Condition;
use crate::named::{Named, fencing_token};
use crate::participants;

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// The lock is not free: these hold it.
    Waiting { holders: &'a [Participant] },
    /// The lock could not be acquired in time: these hold it, or wait for it before us, or a pause after an earlier hold goes on
    /// for so long.
    NotAcquired {
        holders: &'a [Participant],
        waiters: &'a [Participant],
        waited: Option<Duration>,
        pause: Option<Duration>,
    },
    /// The slot has run before, here or elsewhere.
    Skipped { slot: &'a str },
    /// The lock is held.
    Acquired { token: Option<FencingToken>, mode: Mode },
    /// The command was started.
    Started { pid: i32 },
    /// Contact with the server is lost; the lock is still held.
    Suspect { remaining: Option<Duration> },
    /// Contact returned in time.
    Restored,
    /// The lock is lost.
    Lost { reason: LossReason },
    /// A signal was sent to the command and all its descendants, because of the loss.
    Terminating { signal: Signal },
    /// A signal could not be sent to these processes, which belong to another user.
    Refused { signal: Signal, pids: Vec<Pid> },
    /// These processes have not ended despite SIGKILL; none if the system does not show which.
    Survived { pids: Vec<Pid> },
    /// The command exited with a code.
    Exited { code: u8 },
    /// A signal ended the command.
    Killed { signal: i32 },
    /// The lock was released.
    Released,
    /// The lock was given up, but the server has not confirmed it.
    Unconfirmed { message: String },
}

/// How important an event is to a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Printed even with `--quiet`.
    Error,
    /// Printed, unless with `--quiet`.
    Warning,
    /// Printed on a terminal, or with `--verbose`.
    Progress,
    /// Printed with `--verbose`.
    Detail,
}

impl Event<'_> {
    pub(crate) fn acquired(hold: &Hold) -> Self {
        let mode = hold.mode();
        Self::Acquired { token: fencing_token(hold.token(), mode), mode }
    }

    pub(crate) fn level(&self) -> Level {
        match self {
            Self::Lost { .. } | Self::Refused { .. } | Self::Survived { .. } => Level::Error,
            Self::NotAcquired { .. }
            | Self::Skipped { .. }
            | Self::Suspect { .. }
            | Self::Restored
            | Self::Terminating { .. }
            | Self::Unconfirmed { .. } => Level::Warning,
            Self::Waiting { .. } => Level::Progress,
            Self::Acquired { .. }
            | Self::Started { .. }
            | Self::Exited { .. }
            | Self::Killed { .. }
            | Self::Released => Level::Detail,
        }
    }

    /// The event as a JSON object; `name` is the name of the lock.
    pub(crate) fn to_json(&self, name: &str) -> Value {
        let (word, details) = match self {
            Self::Waiting { holders } => ("waiting", json!({ "holders": participants::to_json(holders) })),
            Self::NotAcquired { holders, waiters, pause, .. } => {
                let mut details = json!({ "holders": participants::to_json(holders), "waiters": participants::to_json(waiters) });
                if let Some(pause) = pause {
                    details["pause_ms"] = json!(milliseconds(*pause));
                }
                ("not_acquired", details)
            }
            Self::Skipped { slot } => ("skipped", json!({ "slot": slot })),
            Self::Acquired { token, mode } => {
                let mut details = json!({ "token": token.map(|token| token.to_string()) });
                if *mode != Mode::Exclusive {
                    details["mode"] = json!(participants::word_for(*mode));
                }
                if let Mode::Permits { take, .. } = mode {
                    details["permits"] = json!(take);
                }
                ("acquired", details)
            }
            Self::Started { pid } => ("started", json!({ "pid": pid })),
            Self::Suspect { remaining } => {
                ("suspect", json!({ "remaining_ms": remaining.map(milliseconds) }))
            }
            Self::Restored => ("restored", json!({})),
            Self::Lost { reason } => ("lost", json!({ "reason": word_for(*reason) })),
            Self::Terminating { signal } => ("terminating", json!({ "signal": signal.as_str() })),
            Self::Refused { signal, pids } => {
                ("refused", json!({ "signal": signal.as_str(), "pids": numbers(pids) }))
            }
            Self::Survived { pids } => ("survived", json!({ "pids": numbers(pids) })),
            Self::Exited { code } => ("exited", json!({ "code": code })),
            Self::Killed { signal } => ("exited", json!({ "signal": name_of(*signal) })),
            Self::Released => ("released", json!({})),
            Self::Unconfirmed { message } => ("unconfirmed", json!({ "message": message })),
        };
        with_head(&[("event", word), ("name", name)], details)
    }

    /// The event as a sentence.
    pub(crate) fn to_text(&self, named: Named<'_>) -> String {
        let now = SystemTime::now();
        match self {
            Self::Waiting { holders: [] } => format!("waiting for {named}"),
            Self::Waiting { holders } => {
                format!("waiting for {named}, held by {}", participants::describe_all(holders, now))
            }
            Self::NotAcquired { holders, waiters, waited, pause } => {
                let why = match (holders, pause) {
                    ([], Some(pause)) => kept_free(*pause, now),
                    _ => who_is_before_us(holders, waiters, now),
                };
                format!("could not acquire {named} {}{why}", within(*waited))
            }
            Self::Skipped { slot } => format!(
                "slot {slot:?} of {:?} was used by an earlier run; the command was not started",
                named.name
            ),
            Self::Acquired { token: Some(token), .. } => format!("{named} is held (token {token})"),
            Self::Acquired { token: None, mode: Mode::Permits { take, of } } => {
                format!("{named} is held ({take} of {of} permits)")
            }
            Self::Acquired { token: None, .. } => format!("{named} is held"),
            Self::Started { pid } => format!("the command runs as pid {pid}"),
            Self::Suspect { remaining: Some(remaining) } => format!(
                "contact lost; {named} is still held, for {} more if contact does not return",
                humantime::format_duration(Duration::from_millis(milliseconds(*remaining)))
            ),
            Self::Suspect { remaining: None } => format!("contact lost; {named} is still held"),
            Self::Restored => format!("contact has returned; {named} was held throughout"),
            Self::Lost { reason } => format!("{named} was lost: {reason}"),
            Self::Terminating { signal } => format!("the command gets {}", signal.as_str()),
            Self::Refused { signal, pids } => format!(
                "{} could not be sent to pid {}, which runs on as another user (end it by hand, and let distlock itself run \
                 as that user)",
                signal.as_str(),
                listed(pids)
            ),
            Self::Survived { pids } if pids.is_empty() => {
                "a process of the command may be left, and may still write: without /proc \
                 of this namespace distlock cannot find it"
                    .to_owned()
            }
            Self::Survived { pids } => format!(
                "pid {} did not end at SIGKILL, and may still write: the system keeps it, as for a disk or a network file \
                 system that does not answer",
                listed(pids)
            ),
            Self::Exited { code } => format!("the command ended with code {code}"),
            Self::Killed { signal } => format!("the command was ended by {}", name_of(*signal)),
            Self::Released => format!("{named} is released"),
            Self::Unconfirmed { message } => message.clone(),
        }
    }
}

/// Real-time signals have no name: which one a number is differs between C libraries.
fn name_of(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |signal| signal.to_string())
}

/// `None` if they are not known.
fn numbers(pids: &[Pid]) -> Option<Vec<i32>> {
    (!pids.is_empty()).then(|| pids.iter().map(|pid| pid.as_raw()).collect())
}

fn listed(pids: &[Pid]) -> String {
    pids.iter().map(Pid::to_string).collect::<Vec<_>>().join(", ")
}

fn within(waited: Option<Duration>) -> String {
    match waited {
        Some(Duration::ZERO) | None => "at once".to_owned(),
        Some(waited) => format!("within {}", humantime::format_duration(waited)),
    }
}

fn kept_free(pause: Duration, now: SystemTime) -> String {
    let left = humantime::format_duration(Duration::from_secs(milliseconds(pause).div_ceil(1000)));
    let end = now.checked_add(pause).map(|end| format!(" until {}", participants::moment(end)));
    format!(
        ": no one holds it, but it is kept free{}, for {left} more (--at-least of an earlier run)",
        end.unwrap_or_default()
    )
}

fn who_is_before_us(holders: &[Participant], waiters: &[Participant], now: SystemTime) -> String {
    match (holders, waiters) {
        ([], []) => String::new(),
        ([], [first, ..]) => {
            format!(
                ": it is free, but {} is first in line{}",
                participants::describe(first, now),
                remedy(first)
            )
        }
        (holders, _) => {
            let remedies: String = holders.iter().map(remedy).collect();
            let held = format!(": held by {}{remedies}", participants::describe_all(holders, now));
            match waiters.first().filter(|_| holders.iter().any(|holder| holder.mode != Mode::Exclusive)) {
                Some(first) => {
                    format!(
                        "{held}, and {} is first in line{}",
                        participants::describe(first, now),
                        remedy(first)
                    )
                }
                None => held,
            }
        }
    }
}

/// What to do about a participant that is stopped or gone.
fn remedy(participant: &Participant) -> String {
    match (Condition::of(participant), participant.pid) {
        (Some(Condition::Stopped), Some(pid)) => format!(" (continue it with kill -CONT {pid}, or end it)"),
        _ => String::new(),
    }
}

/// A JSON object that begins with `head`, for readers on a terminal.
pub(crate) fn with_head(head: &[(&str, &str)], details: Value) -> Value {
    let mut object: Map<String, Value> =
        head.iter().map(|(key, text)| ((*key).to_owned(), json!(text))).collect();
    if let Value::Object(details) = details {
        object.extend(details);
    }
    Value::Object(object)
}

/// Converts to whole milliseconds.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn word_for(reason: LossReason) -> &'static str {
    match reason {
        LossReason::Expired => "expired",
        LossReason::Deleted => "deleted",
        LossReason::Taken => "taken",
        LossReason::SessionClosed => "session_closed",
        LossReason::ClientClosed => "client_closed",
        LossReason::ConnectionLost => "connection_lost",
        LossReason::Broken => "broken",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_a_decimal_string() {
        let acquired = |token, mode| Event::Acquired { token, mode };
        let event = acquired(Some(FencingToken::new(u64::MAX)), Mode::Exclusive);
        assert_eq!(
            event.to_json("a\"b").to_string(),
            r#"{"event":"acquired","name":"a\"b","token":"18446744073709551615"}"#
        );
        assert_eq!(
            acquired(None, Mode::Exclusive).to_json("a").to_string(),
            r#"{"event":"acquired","name":"a","token":null}"#
        );
    }

    #[test]
    fn what_could_not_be_ended_is_named() {
        let event =
            Event::Refused { signal: Signal::SIGKILL, pids: vec![Pid::from_raw(4714), Pid::from_raw(4715)] };
        assert_eq!(
            event.to_json("a").to_string(),
            r#"{"event":"refused","name":"a","signal":"SIGKILL","pids":[4714,4715]}"#
        );
        assert!(event.to_text(Named::lock("a")).contains("could not be sent to pid 4714, 4715"));
    }

    #[test]
    fn what_did_not_end_is_named() {
        let event = Event::Survived { pids: vec![Pid::from_raw(4714), Pid::from_raw(4715)] };
        assert_eq!(event.to_json("a").to_string(), r#"{"event":"survived","name":"a","pids":[4714,4715]}"#);
        assert!(event.to_text(Named::lock("a")).contains("pid 4714, 4715 did not end at SIGKILL"));
        assert_eq!(event.level(), Level::Error);
    }

    #[test]
    fn a_loss_has_its_reason_as_a_word() {
        let event = Event::Lost { reason: LossReason::ConnectionLost };
        assert_eq!(
            event.to_json("a").to_string(),
            r#"{"event":"lost","name":"a","reason":"connection_lost"}"#
        );
    }
}
