//! The data in a node: which client created it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{ErrorKind, FencingToken, HolderId, HolderInfo, LockError, Mode, Operation, Participant};
use lock_kit::ClientRecord;
use serde::{Deserialize, Serialize};
use zookeeper_client::Stat;

use crate::failure::nonsense;

/// What `break_holder` writes into the node of another program's holder before deleting it.
const BROKEN: &[u8] = b"broken";

/// The longest time that a holder may need to stop. A client that breaks its hold waits at most this long for it.
const LONGEST_STOP: Duration = Duration::from_secs(300);

/// A client's description of itself, and what becomes of its hold.
#[derive(Default, Serialize, Deserialize)]
struct Record {
    #[serde(flatten)]
    client: ClientRecord,
    /// How many milliseconds its holds need to stop after the report of their loss.
    #[serde(default, skip_serializing_if = "is_default")]
    stops_within: u64,
    /// Whether a client broke the hold; its holder learns of that from this field.
    #[serde(default, skip_serializing_if = "is_default")]
    broken: bool,
    /// The fencing token, where it is not that of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<i64>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn read(data: &[u8]) -> Option<Record> {
    serde_json::from_slice(data).ok()
}

/// The data for the nodes of a client whose holds need `stops_within` to stop. Fails if that is too long to wait for.
pub(crate) fn text_of(info: &HolderInfo, stops_within: Duration) -> Result<Box<[u8]>, LockError> {
    if stops_within > LONGEST_STOP {
        return Err(LockError::new(ErrorKind::InvalidOption, Operation::Connect)
            .because(format!(
                "an abort margin of {stops_within:?} is too long: {LONGEST_STOP:?} is the longest"
            ))
            .remedy("make the abort margin (for the command: --grace) shorter"));
    }
    let record =
        Record { client: info.into(), stops_within: in_milliseconds(stops_within), ..Record::default() };
    let text =
        serde_json::to_vec(&record).map_err(|error| nonsense(Operation::Connect, &error.to_string()))?;
    Ok(text.into_boxed_slice())
}

/// Rounds up, and limits the result to what can be written down.
fn in_milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// How long the holder of this node needs to stop; zero if the node does not say so. It returns at most the longest time allowed,
/// whatever the node says.
pub(crate) fn stops_within(data: &[u8]) -> Duration {
    let told = read(data).map(|record| Duration::from_millis(record.stops_within));
    told.unwrap_or_default().min(LONGEST_STOP)
}

/// The data of a node with the mark that its hold is broken.
pub(crate) fn broken(data: &[u8]) -> Vec<u8> {
    let marked = read(data).and_then(|record| serde_json::to_vec(&Record { broken: true, ..record }).ok());
    marked.unwrap_or_else(|| BROKEN.to_vec())
}

/// The same for data that the user may not read: the holder is unknown, and may need the longest time.
pub(crate) fn broken_unread() -> Vec<u8> {
    let stops_within = in_milliseconds(LONGEST_STOP);
    let unknown = Record { stops_within, broken: true, ..Record::default() };
    serde_json::to_vec(&unknown).unwrap_or_else(|_| BROKEN.to_vec())
}

/// The data of a node whose holder has this token, whichever transaction created the node.
pub(crate) fn with_token(data: &[u8], token: Option<i64>) -> Vec<u8> {
    let kept = read(data).and_then(|record| serde_json::to_vec(&Record { token, ..record }).ok());
    kept.unwrap_or_else(|| data.to_vec())
}

/// Whether this is the data of a holder whose hold is broken.
pub(crate) fn is_broken(data: &[u8]) -> bool {
    data == BROKEN || read(data).is_some_and(|record| record.broken)
}

/// The owner of a node. Curator writes the address of its machine.
pub(crate) fn participant(name: &str, mode: Mode, node: Option<(&[u8], &Stat)>) -> Participant {
    let mut participant = Participant::new(HolderId::new(name)).with_mode(mode);
    let Some((data, stat)) = node else { return participant };
    let mut token = stat.czxid;
    if let Some(record) = read(data) {
        token = record.token.unwrap_or(token);
        record.client.describe(&mut participant);
    } else if let Ok(text) = std::str::from_utf8(data)
        && data != BROKEN
        && !text.is_empty()
        && text.chars().all(|character| character.is_ascii_graphic())
    {
        participant.host = Some(text.to_owned());
    }
    participant.token = u64::try_from(token).ok().map(FencingToken::new);
    participant.since = time_of(stat.ctime);
    participant
}

fn time_of(milliseconds: i64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(u64::try_from(milliseconds).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_takes_nothing_from_what_is_known_of_a_holder() {
        let info = HolderInfo::of_this_process();
        let text = text_of(&info, Duration::from_micros(1_500_001)).unwrap();
        assert!(!is_broken(&text));
        let marked = broken(&text);
        for text in [&*text, &marked, &broken(&marked)] {
            let record = read(text).unwrap();
            assert_eq!((record.client.host, record.client.pid), (info.host.clone(), info.pid));
            assert_eq!(stops_within(text), Duration::from_millis(1_501));
        }
        assert!(is_broken(&marked) && is_broken(&broken(&marked)));
    }

    #[test]
    fn nodes_of_others_are_marked_too() {
        for text in [&b"10.0.0.7"[..], b"", b"{}", b"\xff", BROKEN] {
            assert_eq!(stops_within(text), Duration::ZERO);
            assert!(is_broken(&broken(text)));
        }
        assert!(!is_broken(b"10.0.0.7") && !is_broken(b""));
    }

    #[test]
    fn no_process_is_waited_for_for_ever() {
        let text = br#"{"host":"h","pid":1,"stops_within":18446744073709551615}"#;
        assert_eq!(stops_within(text), LONGEST_STOP);
        assert_eq!(stops_within(&broken(text)), LONGEST_STOP);
        let info = HolderInfo::of_this_process();
        assert_eq!(stops_within(&text_of(&info, LONGEST_STOP).unwrap()), LONGEST_STOP);
        let refused = text_of(&info, LONGEST_STOP + Duration::from_millis(1)).unwrap_err();
        assert!(
            refused.kind() == ErrorKind::InvalidOption && refused.to_string().contains("--grace"),
            "{refused}"
        );
    }

    #[test]
    fn what_was_not_read_may_need_as_long_as_any() {
        let marked = broken_unread();
        assert!(is_broken(&marked));
        assert_eq!(stops_within(&marked), LONGEST_STOP);
        let stat = Stat {
            czxid: 7,
            mzxid: 8,
            pzxid: 7,
            ctime: 0,
            mtime: 0,
            version: 1,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 1,
            data_length: 0,
            num_children: 0,
        };
        let participant = participant("_c_-lock-0000000001", Mode::Exclusive, Some((&marked, &stat)));
        assert_eq!((participant.host, participant.pid), (None, None));
    }
}
