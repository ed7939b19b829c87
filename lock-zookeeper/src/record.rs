//! What stands in a node: who made it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{FencingToken, HolderId, HolderInfo, LockError, Operation, Participant};
use serde::{Deserialize, Serialize};
use zookeeper_client::Stat;

use crate::contender::Contender;
use crate::trouble::nonsense;

/// What is written into the node of a foreign program's holder before it is deleted on purpose.
const BROKEN: &[u8] = b"broken";

/// What a client tells about itself.
#[derive(Serialize, Deserialize)]
struct Record {
    host: String,
    pid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// How many milliseconds its holds need to stop after they have been told of their loss.
    #[serde(default, skip_serializing_if = "is_default")]
    stops_within: u64,
    /// Whether the hold was taken away on purpose. Its holder learns it from here.
    #[serde(default, skip_serializing_if = "is_default")]
    broken: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn read(data: &[u8]) -> Option<Record> {
    serde_json::from_slice(data).ok()
}

/// The text that is written into the nodes of a client whose holds need so long to stop.
pub(crate) fn text_of(info: &HolderInfo, stops_within: Duration) -> Result<Box<[u8]>, LockError> {
    let record = Record {
        host: info.host.clone(),
        pid: info.pid,
        label: info.label.clone(),
        // Rounded up, and never so long that it could not be written down.
        stops_within: u64::try_from(stops_within.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX),
        broken: false,
    };
    let text =
        serde_json::to_vec(&record).map_err(|error| nonsense(Operation::Connect, &error.to_string()))?;
    Ok(text.into_boxed_slice())
}

/// How long the holder whose node this is needs to stop; nothing if it does not say so.
pub(crate) fn stops_within(data: &[u8]) -> Duration {
    read(data).map_or(Duration::ZERO, |record| Duration::from_millis(record.stops_within))
}

/// What stands in the node of a holder that is broken, in place of this.
pub(crate) fn broken(data: &[u8]) -> Vec<u8> {
    let marked = read(data).and_then(|record| serde_json::to_vec(&Record { broken: true, ..record }).ok());
    marked.unwrap_or_else(|| BROKEN.to_vec())
}

/// Whether this stands in the node of a holder that is broken.
pub(crate) fn is_broken(data: &[u8]) -> bool {
    data == BROKEN || read(data).is_some_and(|record| record.broken)
}

/// Who a node belongs to. Curator writes the address of its machine.
pub(crate) fn participant(contender: &Contender, node: Option<(&[u8], &Stat)>) -> Participant {
    let mut participant = Participant::new(HolderId::new(&contender.name));
    let Some((data, stat)) = node else { return participant };
    if let Some(record) = read(data) {
        participant.host = Some(record.host);
        participant.pid = Some(record.pid);
        participant.label = record.label;
    } else if let Ok(text) = std::str::from_utf8(data)
        && data != BROKEN
        && !text.is_empty()
        && text.chars().all(|character| character.is_ascii_graphic())
    {
        participant.host = Some(text.to_owned());
    }
    participant.token = u64::try_from(stat.czxid).ok().map(FencingToken::new);
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
            assert_eq!((record.host, record.pid), (info.host.clone(), info.pid));
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
}
