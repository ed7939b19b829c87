//! Describes holders and waiters, as text and as JSON.

use std::fmt::Write;
use std::num::NonZeroU32;
use std::time::SystemTime;

use distlock::status::{Mode, Participant};
use serde::Serialize;

use crate::condition::Condition;
use crate::named::fencing_token;

/// One holder or waiter as JSON. Unknown fields are `null`.
#[derive(Debug, Serialize)]
pub(crate) struct ParticipantJson {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permits: Option<NonZeroU32>,
    token: Option<String>,
    host: Option<String>,
    pid: Option<u32>,
    label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    since: Option<String>,
}

impl From<&Participant> for ParticipantJson {
    fn from(participant: &Participant) -> Self {
        Self {
            id: participant.id.to_string(),
            mode: Some(word_for(participant.mode)),
            permits: permits(participant),
            token: fencing_token(participant.token, participant.mode).map(|token| token.to_string()),
            host: participant.host.clone(),
            pid: participant.pid,
            label: participant.label.clone(),
            value: participant.value.clone(),
            since: participant.since.map(|since| humantime::format_rfc3339_millis(since).to_string()),
        }
    }
}

impl ParticipantJson {
    /// A leader, which is always alone.
    pub(crate) fn of_leader(leader: &Participant) -> Self {
        Self { mode: None, ..Self::from(leader) }
    }
}

/// How a mode is called in JSON, and before a waiter.
pub(crate) fn word_for(mode: Mode) -> &'static str {
    match mode {
        Mode::Shared => "shared",
        Mode::Permits { .. } => "permits",
        _ => "exclusive",
    }
}

/// How many permits it holds or wants.
pub(crate) fn permits(participant: &Participant) -> Option<NonZeroU32> {
    match participant.mode {
        Mode::Permits { take, .. } => Some(take),
        _ => None,
    }
}

/// All participants as JSON, in order.
pub(crate) fn to_json(participants: &[Participant]) -> Vec<ParticipantJson> {
    participants.iter().map(ParticipantJson::from).collect()
}

/// Describes a leader: `pid 4711 on web-1 since 2026-11-21 02:03:04 UTC (5m 3s ago), term 18, value "10.0.0.7:8080"`.
pub(crate) fn describe_leader(leader: &Participant, now: SystemTime) -> String {
    let term = leader.token.map(|token| format!(", term {token}"));
    let value = leader.value.as_ref().map(|value| format!(", value {value:?}"));
    [Some(who(leader)), since(leader, now), term, value].into_iter().flatten().collect()
}

/// Describes a participant: `pid 4711 on cache-1 ("nightly") since 2026-11-21 02:03:04 UTC (5m 3s ago)`.
pub(crate) fn describe(participant: &Participant, now: SystemTime) -> String {
    let mut text = who(participant);
    // Writing into a String cannot fail.
    if let Some(label) = &participant.label {
        let _ = write!(text, " ({label:?})");
    }
    if let Some(condition) = Condition::of(participant) {
        let _ = write!(text, ", {condition},");
    }
    text.push_str(&since(participant, now).unwrap_or_default());
    text.trim_end_matches(',').to_owned()
}

pub(crate) fn who(participant: &Participant) -> String {
    match (&participant.pid, &participant.host) {
        (Some(pid), Some(host)) => format!("pid {pid} on {}", printable(host)),
        (Some(pid), None) => format!("pid {pid}"),
        (None, Some(host)) => format!("a client on {}", printable(host)),
        (None, None) => format!("holder {}", printable(participant.id.as_str())),
    }
}

fn since(participant: &Participant, now: SystemTime) -> Option<String> {
    let since = participant.since?;
    let ago = now.duration_since(since).ok();
    let ago = ago.map(|ago| format!(" ({} ago)", humantime::format_duration(whole_seconds(ago))));
    Some(format!(" since {}{}", moment(since), ago.unwrap_or_default()))
}

/// How many participants are described in one line; `status` shows all.
const MOST_IN_A_LINE: usize = 3;

/// Describes the participants in one line: the first of them, and how many others there are.
pub(crate) fn describe_all(participants: &[Participant], now: SystemTime) -> String {
    let first = participants.iter().take(MOST_IN_A_LINE).map(|participant| describe(participant, now));
    let first = first.collect::<Vec<_>>().join(", ");
    match participants.len().saturating_sub(MOST_IN_A_LINE) {
        0 => first,
        1 => format!("{first} and 1 other"),
        others => format!("{first} and {others} others"),
    }
}

/// Makes text of other programs safe to print, without control sequences for a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .flat_map(
            |character| {
                if character.is_control() { character.escape_default().collect() } else { vec![character] }
            },
        )
        .collect()
}

/// Describes a moment: `2026-11-21 02:03:04 UTC`.
pub(crate) fn moment(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', " UTC")
}

pub(crate) fn whole_seconds(duration: std::time::Duration) -> std::time::Duration {
    std::time::Duration::from_secs(duration.as_secs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock::FencingToken;
    use distlock::status::{HolderId, HolderInfo};

    use super::*;

    fn participant() -> Participant {
        let mut info = HolderInfo::of_this_process();
        info.host = "cache-1\u{1b}[2J".to_owned();
        info.pid = 4711;
        info.origin = None;
        info.label = Some("nightly".to_owned());
        Participant::new(HolderId::new("7f"))
            .with_info(&info)
            .with_since(SystemTime::UNIX_EPOCH + Duration::from_secs(86_400))
    }

    #[test]
    fn people_read_who_and_since_when_and_no_control_characters() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(86_703_500);
        assert_eq!(
            describe(&participant(), now),
            "pid 4711 on cache-1\\u{1b}[2J (\"nightly\") since 1970-01-02 00:00:00 UTC (5m 3s ago)"
        );
        assert_eq!(describe(&Participant::new(HolderId::new("7f")), now), "holder 7f");
    }

    #[test]
    fn many_holders_fit_in_a_line() {
        let holders: Vec<_> =
            ["a", "b", "c", "d", "e"].map(|id| Participant::new(HolderId::new(id))).into_iter().collect();
        let text = |count: usize| describe_all(&holders[..count], SystemTime::UNIX_EPOCH);
        assert_eq!(text(3), "holder a, holder b, holder c");
        assert_eq!(text(4), "holder a, holder b, holder c and 1 other");
        assert_eq!(text(5), "holder a, holder b, holder c and 2 others");
    }

    #[test]
    fn json_has_every_key() {
        let json =
            |participant: Participant| serde_json::to_string(&ParticipantJson::from(&participant)).unwrap();
        let rest = r#""token":null,"host":null,"pid":null,"label":null,"since":null}"#;
        let unknown = Participant::new(HolderId::new("7f"));
        assert_eq!(json(unknown.clone()), format!(r#"{{"id":"7f","mode":"exclusive",{rest}"#));
        let (take, of) = (NonZeroU32::new(2).unwrap(), NonZeroU32::new(5).unwrap());
        // The token of a permit fences nothing.
        let permits = unknown.with_mode(Mode::Permits { take, of }).with_token(Some(FencingToken::new(1)));
        assert_eq!(json(permits), format!(r#"{{"id":"7f","mode":"permits","permits":2,{rest}"#));
    }
}
