//! What a client says of itself where it holds a lock or waits for one.

use lock_core::{HolderInfo, Participant, ProcessOrigin};
use serde::{Deserialize, Serialize};

/// A client's description of itself, as a part of what a backend keeps of a holder or a waiter.
///
/// ```
/// use lock_core::{HolderId, HolderInfo, Participant};
/// use lock_kit::ClientRecord;
///
/// let ours = HolderInfo::of_this_process();
/// let mut shown = Participant::new(HolderId::new("1"));
/// ClientRecord::from(&ours).describe(&mut shown);
/// assert_eq!((shown.host, shown.pid), (Some(ours.host), Some(ours.pid)));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecord {
    /// The host name of its machine; empty if it is not known.
    pub host: String,
    /// Its process id; zero if it is not known.
    pub pid: u32,
    /// Distinguishes the process from others with the same id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The label that its user gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The value of a leader or a candidate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

impl ClientRecord {
    /// The record of a waiter, which leaves the value out.
    pub fn of_waiter(info: &HolderInfo) -> Self {
        Self { value: None, ..info.into() }
    }

    /// Adds what it says to a participant.
    pub fn describe(self, participant: &mut Participant) {
        participant.host = Some(self.host).filter(|host| !host.is_empty());
        participant.pid = Some(self.pid).filter(|pid| *pid != 0);
        participant.origin = self.origin.as_deref().and_then(ProcessOrigin::parse);
        participant.label = self.label;
        participant.value = self.value;
    }
}

impl From<&HolderInfo> for ClientRecord {
    fn from(info: &HolderInfo) -> Self {
        Self {
            host: info.host.clone(),
            pid: info.pid,
            origin: info.origin.as_ref().map(ToString::to_string),
            label: info.label.clone(),
            value: info.value.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other versions and other programs read it.
    #[test]
    fn the_stored_form_is_what_it_was() {
        let all = ClientRecord {
            host: "h".to_owned(),
            pid: 7,
            origin: Some("boot/1".to_owned()),
            label: Some("l".to_owned()),
            value: Some("v".to_owned()),
        };
        let stored = r#"{"host":"h","pid":7,"origin":"boot/1","label":"l","value":"v"}"#;
        assert_eq!(serde_json::to_string(&all).unwrap(), stored);
        assert_eq!(serde_json::from_str::<ClientRecord>(stored).unwrap(), all);
        let least = ClientRecord { host: "h".to_owned(), pid: 7, ..ClientRecord::default() };
        assert_eq!(serde_json::to_string(&least).unwrap(), r#"{"host":"h","pid":7}"#);
    }
}
