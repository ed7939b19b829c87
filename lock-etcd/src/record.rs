//! The value of a key: which client created it, and what it asks for.

use std::num::NonZeroU32;
use std::time::Duration;

use lock_core::{ErrorKind, HolderInfo, LockError, Mode, Operation};
use lock_kit::ClientRecord;
use serde::{Deserialize, Serialize};

use crate::failure::nonsense;

/// The layout of keys and values that this version writes and understands.
const LAYOUT: u32 = 1;

/// The longest time that a holder may need to stop. A client that breaks its hold waits at most this long for it.
const LONGEST_STOP: Duration = Duration::from_secs(300);

/// What a value of ours says, whatever its layout.
#[derive(Deserialize)]
struct Layout {
    distlock: u32,
}

/// A client's description of itself, what it asks for, and what becomes of its hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    distlock: u32,
    #[serde(flatten)]
    pub(crate) client: ClientRecord,
    #[serde(default, skip_serializing_if = "is_default")]
    shared: bool,
    /// How many permits, and of how many; none for a lock.
    #[serde(default, skip_serializing_if = "is_default")]
    permits: Option<(NonZeroU32, NonZeroU32)>,
    /// How many milliseconds the holder needs to stop after the report of its loss.
    #[serde(default, skip_serializing_if = "is_default")]
    stops_within: u64,
    /// Whether a client broke the hold; its holder learns of that from this field.
    #[serde(default, skip_serializing_if = "is_default")]
    broken: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whose value this is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Told {
    /// One of this layout.
    Ours(Record),
    /// One of a layout that this client does not understand.
    Newer,
    /// Another program's: it excludes all others. `etcdctl lock` writes nothing, and a candidate of `etcdctl elect` its proposal.
    Foreign(Vec<u8>),
}

impl Told {
    pub(crate) fn read(value: Vec<u8>) -> Self {
        let layout = serde_json::from_slice::<Layout>(&value).map(|found| found.distlock);
        match (layout, serde_json::from_slice(&value)) {
            (Ok(LAYOUT), Ok(record)) => Self::Ours(record),
            (Ok(layout), _) if layout > LAYOUT => Self::Newer,
            _ => Self::Foreign(value),
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        match self {
            Self::Ours(record) => record.mode(),
            Self::Newer | Self::Foreign(_) => Mode::Exclusive,
        }
    }

    /// Whether the key has the mark that its hold is broken.
    pub(crate) fn is_broken(&self) -> bool {
        matches!(self, Self::Ours(record) if record.broken)
    }
}

impl Record {
    /// The record of a client that asks for this and needs `stops_within` to stop. Fails if that is too long to wait for.
    pub(crate) fn new(info: &HolderInfo, mode: Mode, stops_within: Duration) -> Result<Self, LockError> {
        if stops_within > LONGEST_STOP {
            return Err(LockError::new(ErrorKind::InvalidOption, Operation::Connect)
                .because(format!(
                    "an abort margin of {stops_within:?} is too long: {LONGEST_STOP:?} is the longest"
                ))
                .remedy("make the abort margin (for the command: --grace) shorter"));
        }
        Ok(Self {
            distlock: LAYOUT,
            client: info.into(),
            shared: mode == Mode::Shared,
            permits: match mode {
                Mode::Permits { take, of } => Some((take, of)),
                _ => None,
            },
            stops_within: u64::try_from(stops_within.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX),
            broken: false,
        })
    }

    /// The same with the mark that the hold is broken.
    pub(crate) fn broken(&self) -> Self {
        Self { broken: true, ..self.clone() }
    }

    fn mode(&self) -> Mode {
        match self.permits {
            Some((take, of)) => Mode::Permits { take, of },
            None if self.shared => Mode::Shared,
            None => Mode::Exclusive,
        }
    }

    /// How long its holder needs to stop, whatever the value says.
    pub(crate) fn stops_within(&self) -> Duration {
        Duration::from_millis(self.stops_within).min(LONGEST_STOP)
    }

    pub(crate) fn text(&self) -> Result<Vec<u8>, LockError> {
        serde_json::to_vec(self).map_err(|error| nonsense(Operation::Acquire, &error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn record(mode: Mode) -> Record {
        let mut info = HolderInfo::of_this_process();
        (info.host, info.pid, info.origin) = ("box".to_owned(), 7, None);
        Record::new(&info, mode, Duration::from_millis(1500)).unwrap()
    }

    fn text(record: &Record) -> String {
        String::from_utf8(record.text().unwrap()).unwrap()
    }

    #[test]
    fn the_stored_form_stays_as_it_is() {
        let one = NonZeroU32::MIN;
        assert_eq!(
            text(&record(Mode::Exclusive)),
            r#"{"distlock":1,"host":"box","pid":7,"stops_within":1500}"#
        );
        assert_eq!(
            text(&record(Mode::Shared).broken()),
            r#"{"distlock":1,"host":"box","pid":7,"shared":true,"stops_within":1500,"broken":true}"#
        );
        assert_eq!(
            text(&record(Mode::Permits { take: one, of: one.saturating_add(2) })),
            r#"{"distlock":1,"host":"box","pid":7,"permits":[1,3],"stops_within":1500}"#
        );
    }

    #[test]
    fn what_is_read_is_ours_or_excludes_all_others() {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let record = record(mode);
            let told = Told::read(record.text().unwrap());
            assert_eq!(told, Told::Ours(record));
            assert_eq!(told.mode(), mode);
        }
        for value in ["", "box7", r#"{"host":"box"}"#, r#"{"distlock":"x"}"#, r#"{"distlock":1}"#, "[1]"] {
            let told = Told::read(value.as_bytes().to_vec());
            assert!(matches!(told, Told::Foreign(_)) && told.mode() == Mode::Exclusive, "{value}");
        }
        assert_eq!(Told::read(br#"{"distlock":2,"more":[]}"#.to_vec()), Told::Newer);
    }

    #[test]
    fn no_holder_is_waited_for_longer_than_five_minutes() {
        let too_long = Record::new(&HolderInfo::of_this_process(), Mode::Exclusive, Duration::from_secs(301));
        assert_eq!(too_long.unwrap_err().kind(), ErrorKind::InvalidOption);
        let foreign = Record { stops_within: u64::MAX, ..Record::default() };
        assert_eq!(foreign.stops_within(), LONGEST_STOP);
    }
}
