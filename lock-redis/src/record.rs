//! Reads and writes the formats of the scripts: their records of holders and waiters, and their answers.

use std::num::NonZeroU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{
    FencingToken, HolderId, HolderInfo, LockError, LockName, LockStatus, LossReason, Operation, Participant,
};
use lock_kit::ClientRecord;
use redis::Value;

use crate::failure::nonsense;
use crate::keys::mode_of;

/// The score of a waiter is its arrival, in microseconds; that of a holder is the end of its lease, in milliseconds.
const FIRST_ARRIVAL: f64 = 1e14;

/// Encodes the description of a holder as the server keeps it.
pub(crate) fn holder_text(info: &HolderInfo) -> Result<String, LockError> {
    serde_json::to_string(&ClientRecord::from(info)).map_err(|error| nonsense(Operation::Describe, error))
}

/// The result of an `acquire`.
#[derive(Debug, PartialEq)]
pub(crate) enum Acquired {
    Held(FencingToken),
    Waits {
        /// The time until a lease ends that is in the way; `None` if it has no end, zero if the lock is free.
        remaining: Option<Duration>,
        /// How many waiters are before this one.
        before: u32,
        /// Its score in the queue; `None` for an attempt that takes no place.
        place: Option<NonZeroU64>,
        holder: Option<Participant>,
    },
    /// The attempt no longer has a place in the queue.
    Gone,
    /// The semaphore has this many permits.
    OtherPermits(u32),
}

impl Acquired {
    pub(crate) fn read(answer: &Value) -> Result<Self, LockError> {
        let read = || match answer {
            Value::Int(-1) => Some(Self::Gone),
            Value::BulkString(token) => {
                let token: NonZeroU64 = std::str::from_utf8(token).ok()?.parse().ok()?;
                Some(Self::Held(FencingToken::new(token.get())))
            }
            Value::Array(parts) => match *parts.as_slice() {
                [Value::Int(-1), Value::Int(permits)] => Some(Self::OtherPermits(permits.try_into().ok()?)),
                [
                    Value::Int(remaining),
                    Value::Int(before),
                    Value::Int(place),
                    Value::BulkString(ref hold),
                ] => {
                    let left = Duration::from_millis(remaining.try_into().unwrap_or(0));
                    Some(Self::Waits {
                        // -1: the lease has no end; -2: the lock is free, but one call could not check all that are dead.
                        remaining: (remaining != -1).then_some(left),
                        before: before.try_into().unwrap_or(0),
                        place: NonZeroU64::new(place.unsigned_abs()),
                        holder: (!hold.is_empty()).then(|| holder(&String::from_utf8_lossy(hold))),
                    })
                }
                _ => None,
            },
            _ => None,
        };
        read().ok_or_else(|| nonsense(Operation::Acquire, format!("{answer:?}")))
    }
}

/// Reads the answer of a script that hands the lock off: the result, and whether there are waiters that it has not checked.
pub(crate) fn handed_over(operation: Operation, answer: Value) -> Result<(i64, i64), LockError> {
    match answer {
        Value::Int(result) => Ok((result, 0)),
        answer => redis::from_redis_value(answer).map_err(|error| nonsense(operation, error)),
    }
}

/// Why a client no longer holds the lock.
pub(crate) fn loss(operation: Operation, code: i64) -> Result<LossReason, LockError> {
    match code {
        0 => Ok(LossReason::Deleted),
        2 => Ok(LossReason::Taken),
        3 => Ok(LossReason::Broken),
        _ => Err(nonsense(operation, code)),
    }
}

/// Parses the answer of `inspect`.
pub(crate) fn status(name: &LockName, answer: &[String]) -> Result<LockStatus, LockError> {
    let broken = || nonsense(Operation::Inspect, "not the parts that were asked for");
    let [hold, remaining, others @ ..] = answer else { return Err(broken()) };
    let mut status = LockStatus::free(name.clone());
    if !hold.is_empty() {
        status.holders.push(holder(hold));
    }
    let (others, []) = others.as_chunks() else { return Err(broken()) };
    for [id, score, state] in others {
        if score.parse::<f64>().map_err(|_| broken())? < FIRST_ARRIVAL {
            status.holders.push(holding(id, state.splitn(4, ' ')));
        } else {
            // The state is "ends beat channel holder".
            status.waiters.push(participant(id, microseconds(score), state.splitn(4, ' ').nth(3)));
        }
    }
    status.holders.sort_by_key(|holder| holder.token);
    let remaining: i64 = remaining.parse().map_err(|_| broken())?;
    if status.is_held() {
        status.remaining = u64::try_from(remaining).ok().map(Duration::from_millis);
    }
    Ok(status)
}

/// Parses "id layout token since channel holder"; for a hold that another program wrote, whatever can be read.
fn holder(hold: &str) -> Participant {
    let mut words = hold.splitn(6, ' ');
    let id = words.next().unwrap_or_default();
    let _layout = words.next();
    holding(id, words)
}

/// Takes "token since channel holder".
fn holding<'a>(id: &str, mut words: impl Iterator<Item = &'a str>) -> Participant {
    let token = words.next().and_then(|word| word.parse().ok()).map(FencingToken::new);
    let since = words.next().and_then(microseconds);
    participant(id, since, words.nth(1)).with_token(token)
}

fn participant(id: &str, since: Option<SystemTime>, holder: Option<&str>) -> Participant {
    let mut participant = Participant::new(HolderId::new(id)).with_mode(mode_of(id));
    participant.since = since;
    if let Some(record) = holder.and_then(|text| serde_json::from_str::<ClientRecord>(text).ok()) {
        record.describe(&mut participant);
    }
    participant
}

/// Parses a time of the server: whole microseconds since the epoch.
fn microseconds(text: &str) -> Option<SystemTime> {
    let whole = text.split('.').next()?.parse().ok()?;
    UNIX_EPOCH.checked_add(Duration::from_micros(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn texts<const N: usize>(texts: [&str; N]) -> [String; N] {
        texts.map(str::to_owned)
    }

    #[test]
    fn reads_the_token_of_a_grant() {
        let token = 1_700_000_000_000_001;
        let held = Acquired::Held(FencingToken::new(token));
        assert_eq!(Acquired::read(&bulk(&token.to_string())).unwrap(), held);
    }

    #[test]
    fn shows_a_hold_that_another_program_wrote_as_far_as_it_goes() {
        let name = LockName::new("a").unwrap();
        let read = status(&name, &texts(["thief", "-1"])).unwrap();
        assert_eq!(read.holders[0].id.as_str(), "thief");
        assert_eq!((read.holders[0].token, read.remaining), (None, None));
    }

    #[test]
    fn shows_holder_and_waiters() {
        let name = LockName::new("a").unwrap();
        let hold = "ff v1 12 1700000000000000 c:1 {\"host\":\"h 1\",\"pid\":3,\"label\":\"l\"}";
        let waiter = "1700000030000 4 - {\"host\":\"h2\",\"pid\":5}";
        let answer = texts([hold, "1500", "ee", "1700000000000001", waiter]);
        let read = status(&name, &answer).unwrap();
        let holder = &read.holders[0];
        assert_eq!(
            (holder.host.as_deref(), holder.pid, holder.label.as_deref()),
            (Some("h 1"), Some(3), Some("l"))
        );
        assert_eq!(holder.token, Some(FencingToken::new(12)));
        assert_eq!(holder.since, Some(UNIX_EPOCH + Duration::from_secs(1_700_000_000)));
        assert_eq!(read.remaining, Some(Duration::from_millis(1500)));
        assert_eq!((read.waiters[0].id.as_str(), read.waiters[0].pid), ("ee", Some(5)));
    }

    #[test]
    fn shows_those_that_hold_it_together() {
        let name = LockName::new("a").unwrap();
        let state = |token: u32| format!("{token} 1700000000000000 - {{\"host\":\"h\",\"pid\":3}}");
        let (ends, arrived) = ("1700000030000", "1700000000000001");
        let answer = texts([
            "",
            "7",
            "b:1/5",
            ends,
            &state(9),
            "a:2/5",
            ends,
            &state(8),
            "c:4/5",
            arrived,
            "1700000030000 4 - {}",
        ]);
        let read = status(&name, &answer).unwrap();
        let ids: Vec<_> = read.holders.iter().map(|holder| holder.id.as_str()).collect();
        assert_eq!((&*ids, read.free_permits()), (&["a:2/5", "b:1/5"][..], Some(2)));
        assert_eq!(read.waiters[0].mode.to_string(), "4 of 5 permits");
        assert_eq!((read.remaining, read.holders[0].pid), (Some(Duration::from_millis(7)), Some(3)));
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_an_error() {
        let name = LockName::new("a").unwrap();
        assert!(status(&name, &[]).is_err());
        assert!(status(&name, &texts(["", "-2", "ee"])).is_err());
        let numbers = [Value::Int(0), Value::Int(7), Value::Array(vec![Value::Int(7)])];
        let texts = ["", "0", "-1", "7 ", "seven"].map(bulk);
        for answer in numbers.into_iter().chain(texts).chain([Value::Nil]) {
            assert!(Acquired::read(&answer).is_err(), "{answer:?}");
        }
        assert!(loss(Operation::Renew, 1).is_err());
        assert!(handed_over(Operation::Release, Value::Array(vec![Value::Int(1)])).is_err());
    }
}
