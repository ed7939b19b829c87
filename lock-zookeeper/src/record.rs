//! What stands in a node: who made it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{FencingToken, HolderId, HolderInfo, LockError, Operation, Participant};
use serde::{Deserialize, Serialize};
use zookeeper_client::Stat;

use crate::contender::Contender;
use crate::trouble::nonsense;

/// What is written into a holder's node before it is deleted on purpose, so that the holder knows why.
pub(crate) const BROKEN: &[u8] = b"broken";

/// What a client tells about itself.
#[derive(Serialize, Deserialize)]
struct Record {
    host: String,
    pid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
}

/// The text of it that is written into a node.
pub(crate) fn text_of(info: &HolderInfo) -> Result<Box<[u8]>, LockError> {
    let record = Record { host: info.host.clone(), pid: info.pid, label: info.label.clone() };
    let text =
        serde_json::to_vec(&record).map_err(|error| nonsense(Operation::Connect, &error.to_string()))?;
    Ok(text.into_boxed_slice())
}

/// Who a node belongs to. Curator writes the address of its machine.
pub(crate) fn participant(contender: &Contender, node: Option<(&[u8], &Stat)>) -> Participant {
    let mut participant = Participant::new(HolderId::new(&contender.name));
    let Some((data, stat)) = node else { return participant };
    if let Ok(record) = serde_json::from_slice::<Record>(data) {
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
