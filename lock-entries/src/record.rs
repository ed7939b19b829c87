//! The value of an entry: which client created it, what it asks for, and what becomes of its hold.

use std::num::NonZeroU32;
use std::time::{Duration, UNIX_EPOCH};

use lock_core::{
    AcquireRequest, BackendContext, ErrorKind, HolderInfo, LockError, Mode, Operation, Participant,
};
use lock_kit::ClientRecord;
use serde::{Deserialize, Serialize};

/// The layout of values that this version writes and understands.
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
pub struct Record {
    distlock: u32,
    #[serde(flatten)]
    client: ClientRecord,
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
    /// The lock's name as its user wrote it, if it is another one at the store.
    #[serde(default, skip_serializing_if = "is_default")]
    name: Option<String>,
    /// When the attempt began, in milliseconds since the epoch by the clock of its machine, which only people read; zero where the store
    /// knows it.
    #[serde(default, skip_serializing_if = "is_default")]
    since: u64,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whose value this is.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// One of this layout.
    Ours(Record),
    /// One of a layout that this client does not understand.
    Newer,
    /// Another program's, which excludes all others.
    Foreign(Vec<u8>),
}

impl Told {
    /// Reads a value.
    pub fn read(value: &[u8]) -> Self {
        let layout = serde_json::from_slice::<Layout>(value).map(|found| found.distlock);
        match (layout, serde_json::from_slice(value)) {
            (Ok(LAYOUT), Ok(record)) => Self::Ours(record),
            (Ok(layout), _) if layout > LAYOUT => Self::Newer,
            _ => Self::Foreign(value.to_vec()),
        }
    }

    /// Returns how the entry holds or wants the lock.
    pub fn mode(&self) -> Mode {
        match self {
            Self::Ours(record) => record.mode(),
            Self::Newer | Self::Foreign(_) => Mode::Exclusive,
        }
    }

    /// Returns the lock's name as its user wrote it, if the entry says that it is another one at the store.
    pub fn name(&self) -> Option<String> {
        match self {
            Self::Ours(record) => record.name.clone(),
            Self::Newer | Self::Foreign(_) => None,
        }
    }

    /// Returns whether the entry has the mark that its hold is broken.
    pub fn is_broken(&self) -> bool {
        matches!(self, Self::Ours(record) if record.is_broken())
    }
}

/// Returns the error for an entry with a layout that this client does not understand.
pub fn newer(name: &str) -> LockError {
    LockError::new(ErrorKind::Unsupported, Operation::Acquire)
        .because(format!("{name:?} comes from a newer version of distlock"))
        .remedy("update this program")
}

impl Record {
    /// Creates the record of a client that asks for this and needs `stops_within` to stop.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] if that is more than 300 s, too long to wait for.
    pub fn new(info: &HolderInfo, mode: Mode, stops_within: Duration) -> Result<Self, LockError> {
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
            ..Self::default()
        })
    }

    /// Creates the record of an attempt.
    ///
    /// # Errors
    /// See [`Record::new`].
    pub fn of(request: &AcquireRequest, context: &BackendContext) -> Result<Self, LockError> {
        let record = Self::new(request.holder(), request.mode(), context.abort_margin())?;
        let is_mapped = request.name().as_str() != request.physical().as_str();
        Ok(Self { name: is_mapped.then(|| request.name().as_str().to_owned()), ..record })
    }

    /// Creates the record of a holder of which nothing is known: it may need the longest time to stop.
    pub fn unknown() -> Self {
        Self { distlock: LAYOUT, stops_within: u64::MAX, ..Self::default() }
    }

    /// Returns the same with the mark that the hold is broken.
    #[must_use]
    pub fn broken(&self) -> Self {
        Self { broken: true, ..self.clone() }
    }

    /// Returns the same for a client that says this of itself.
    #[must_use]
    pub fn shown_as(mut self, holder: &HolderInfo) -> Self {
        self.client = holder.into();
        self
    }

    /// Returns the same for an attempt that began [then](crate::Claim::since).
    #[must_use]
    pub fn begun(self, since: u64) -> Self {
        Self { since, ..self }
    }

    /// Returns whether it has the mark that the hold is broken.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    fn mode(&self) -> Mode {
        match self.permits {
            Some((take, of)) => Mode::Permits { take, of },
            None if self.shared => Mode::Shared,
            None => Mode::Exclusive,
        }
    }

    /// Returns how long its holder needs to stop: at most 300 s, whatever the value says.
    pub fn stops_within(&self) -> Duration {
        Duration::from_millis(self.stops_within).min(LONGEST_STOP)
    }

    /// Adds what it says to a participant.
    pub fn describe(self, participant: &mut Participant) {
        self.client.describe(participant);
        let since = UNIX_EPOCH.checked_add(Duration::from_millis(self.since)).filter(|_| self.since > 0);
        participant.since = since.or(participant.since);
    }

    /// Returns the value as the store keeps it.
    ///
    /// # Errors
    /// [`ErrorKind::Server`] for what has no such form.
    pub fn text(&self) -> Result<Vec<u8>, LockError> {
        serde_json::to_vec(self).map_err(|error| {
            LockError::new(ErrorKind::Server, Operation::Acquire)
                .because(format!("a record cannot be written: {error}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(mode: Mode) -> Record {
        let mut info = HolderInfo::of_this_process();
        (info.host, info.pid, info.origin) = ("box".to_owned(), 7, None);
        Record::new(&info, mode, Duration::from_micros(1_499_001)).unwrap()
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
        assert_eq!(
            text(&record(Mode::Exclusive).begun(5)),
            r#"{"distlock":1,"host":"box","pid":7,"stops_within":1500,"since":5}"#
        );
    }

    #[test]
    fn what_is_read_is_ours_or_excludes_all_others() {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let record = record(mode);
            let told = Told::read(&record.text().unwrap());
            assert_eq!(told, Told::Ours(record));
            assert_eq!(told.mode(), mode);
        }
        for value in ["", "box7", r#"{"host":"box"}"#, r#"{"distlock":"x"}"#, r#"{"distlock":1}"#, "[1]"] {
            let told = Told::read(value.as_bytes());
            assert!(matches!(told, Told::Foreign(_)) && told.mode() == Mode::Exclusive, "{value}");
        }
        assert_eq!(Told::read(br#"{"distlock":2,"more":[]}"#), Told::Newer);
    }

    #[test]
    fn a_mark_takes_nothing_from_what_is_known_of_a_holder() {
        let ours = record(Mode::Shared);
        let marked = Told::read(&ours.broken().broken().text().unwrap());
        assert!(marked.is_broken() && !Told::Ours(ours.clone()).is_broken());
        assert_eq!(marked, Told::Ours(Record { broken: true, ..ours }));
    }

    #[test]
    fn no_holder_is_waited_for_longer_than_five_minutes() {
        let too_long = Record::new(&HolderInfo::of_this_process(), Mode::Exclusive, Duration::from_secs(301));
        let error = too_long.unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidOption && error.to_string().contains("--grace"), "{error}");
        assert_eq!(Record::unknown().stops_within(), LONGEST_STOP);
        // What was not read says nothing of its holder, and is a mark for it.
        let unread = Told::read(&Record::unknown().broken().text().unwrap());
        assert!(unread.is_broken());
        let mut shown = Participant::new(lock_core::HolderId::new("1"));
        Record::unknown().describe(&mut shown);
        assert_eq!((shown.host, shown.pid, shown.token), (None, None, None));
    }
}
