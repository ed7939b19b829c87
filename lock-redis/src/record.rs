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
        let parts = match answer {
            Value::Int(-1) => return Ok(Self::Gone),
            Value::BulkString(token) => return Self::held(token),
            Value::Array(parts) => parts.as_slice(),
            _ => &[],
        };
        match *parts {
            [Value::Int(remaining), Value::Int(before), Value::Int(place), ref hold] => Ok(Self::Waits {
                // -1: the lease has no end; -2: the lock is free, but one call could not check all that are dead.
                remaining: match remaining {
                    -1 => None,
                    remaining => Some(Duration::from_millis(remaining.try_into().unwrap_or(0))),
                },
                before: before.try_into().unwrap_or(0),
                place: NonZeroU64::new(place.unsigned_abs()),
                holder: text(hold).filter(|hold| !hold.is_empty()).map(|hold| holder(&hold)),
            }),
            [Value::Int(-1), Value::Int(permits)] => {
                let permits = permits.try_into().map_err(|_| nonsense(Operation::Acquire, permits))?;
                Ok(Self::OtherPermits(permits))
            }
            _ => Err(nonsense(Operation::Acquire, format!("{answer:?}"))),
        }
    }

    fn held(token: &[u8]) -> Result<Self, LockError> {
        let number = std::str::from_utf8(token).ok().and_then(|token| token.parse().ok());
        let number = number.filter(|number| *number > 0);
        let token = number.ok_or_else(|| nonsense(Operation::Acquire, String::from_utf8_lossy(token)))?;
        Ok(Self::Held(FencingToken::new(token)))
    }
}

/// Reads the answer of a script that hands the lock off: the result, and whether there are waiters that it has not checked.
pub(crate) fn handed_over(operation: Operation, answer: &Value) -> Result<(i64, i64), LockError> {
    match answer {
        Value::Int(result) => Ok((*result, 0)),
        Value::Array(parts) => match *parts.as_slice() {
            [Value::Int(result), Value::Int(more)] => Ok((result, more)),
            _ => Err(nonsense(operation, format!("{answer:?}"))),
        },
        _ => Err(nonsense(operation, format!("{answer:?}"))),
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

/// A message on a client's channel.
#[derive(Debug, PartialEq)]
pub(crate) enum Message {
    Granted { id: u128, beat: u64, token: FencingToken },
    Broken { id: u128 },
}

impl Message {
    /// Reads the messages that came together, one in each line.
    pub(crate) fn read_all(text: &str) -> impl Iterator<Item = Self> {
        text.lines().filter_map(Self::read)
    }

    fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let id = words.next()?.split([':', '+']).next()?;
        let id = u128::from_str_radix(id, 16).ok()?;
        match words.next()? {
            "granted" => {
                let beat = words.next()?.parse().ok()?;
                let token = words.next()?.parse().ok()?;
                Some(Self::Granted { id, beat, token: FencingToken::new(token) })
            }
            "broken" => Some(Self::Broken { id }),
            _ => None,
        }
    }
}

/// Parses the answer of `inspect`.
pub(crate) fn status(name: &LockName, answer: &[Value]) -> Result<LockStatus, LockError> {
    let broken = || nonsense(Operation::Inspect, "not the parts that were asked for");
    let [hold, remaining, others @ ..] = answer else { return Err(broken()) };
    let mut status = LockStatus::free(name.clone());
    let hold = text(hold).ok_or_else(broken)?;
    if !hold.is_empty() {
        status.holders.push(holder(&hold));
    }
    for one in others.chunks(3) {
        let [id, score, state] = one else { return Err(broken()) };
        let [id, score, state] = [text(id), text(score), text(state)];
        let (id, score, state) =
            (id.ok_or_else(broken)?, score.ok_or_else(broken)?, state.ok_or_else(broken)?);
        if score.parse::<f64>().map_err(|_| broken())? < FIRST_ARRIVAL {
            status.holders.push(holding(&id, state.splitn(4, ' ')));
        } else {
            status.waiters.push(waiting(&id, &score, &state));
        }
    }
    status.holders.sort_by_key(|holder| holder.token);
    if status.is_held() {
        status.remaining = match remaining {
            Value::Int(remaining) => u64::try_from(*remaining).ok().map(Duration::from_millis),
            _ => return Err(broken()),
        };
    }
    Ok(status)
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
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

/// Parses "ends beat channel holder".
fn waiting(id: &str, since: &str, state: &str) -> Participant {
    participant(id, microseconds(since), state.splitn(4, ' ').nth(3))
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

    #[test]
    fn reads_messages_and_ignores_what_is_none() {
        let granted = Message::Granted { id: 255, beat: 7, token: FencingToken::new(9) };
        assert_eq!(Message::read("000000000000000000000000000000ff granted 7 9"), Some(granted));
        assert_eq!(Message::read("ff broken"), Some(Message::Broken { id: 255 }));
        let read: Vec<_> =
            Message::read_all("ff:r broken\nhello\nfe:1/2 granted 7 9\nfd+99 broken").collect();
        let granted = Message::Granted { id: 254, beat: 7, token: FencingToken::new(9) };
        assert_eq!(read, [Message::Broken { id: 255 }, granted, Message::Broken { id: 253 }]);
        for text in ["", "ff", "ff granted", "ff granted 7", "ff granted x 9", "xyz broken", "ff hello"] {
            assert_eq!(Message::read(text), None, "{text}");
        }
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
        let read = status(&name, &[bulk("thief"), Value::Int(-1)]).unwrap();
        assert_eq!(read.holders[0].id.as_str(), "thief");
        assert_eq!((read.holders[0].token, read.remaining), (None, None));
    }

    #[test]
    fn shows_holder_and_waiters() {
        let name = LockName::new("a").unwrap();
        let hold = "ff v1 12 1700000000000000 c:1 {\"host\":\"h 1\",\"pid\":3,\"label\":\"l\"}";
        let waiter = "1700000030000 4 - {\"host\":\"h2\",\"pid\":5}";
        let answer = [bulk(hold), Value::Int(1500), bulk("ee"), bulk("1700000000000001"), bulk(waiter)];
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
        let state = |token: u32| bulk(&format!("{token} 1700000000000000 - {{\"host\":\"h\",\"pid\":3}}"));
        let (ends, arrived) = (bulk("1700000030000"), bulk("1700000000000001"));
        let (holders, waiter) = ([bulk("b:1/5"), bulk("a:2/5")], bulk("1700000030000 4 - {}"));
        let [first, second] = holders;
        let mut answer = vec![bulk(""), Value::Int(7)];
        answer.extend([
            first,
            ends.clone(),
            state(9),
            second,
            ends,
            state(8),
            bulk("c:4/5"),
            arrived,
            waiter,
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
        assert!(status(&name, &[bulk(""), Value::Int(-2), bulk("ee")]).is_err());
        let numbers = [Value::Int(0), Value::Int(7), Value::Array(vec![Value::Int(7)])];
        let texts = ["", "0", "-1", "7 ", "seven"].map(bulk);
        for answer in numbers.into_iter().chain(texts).chain([Value::Nil]) {
            assert!(Acquired::read(&answer).is_err(), "{answer:?}");
        }
        assert!(loss(Operation::Renew, 1).is_err());
        assert!(handed_over(Operation::Release, &Value::Array(vec![Value::Int(1)])).is_err());
    }
}
