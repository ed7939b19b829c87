//! The layout of what clients keep in their table, and of the names of their locks. It is written down in the table, so that a client
//! refuses to use what it would not understand.

use lock_core::{ErrorKind, LockError, Operation};
use lock_sql::{Failure, nonsense};

use crate::dialect::{Session, Settings};
use crate::statement;

/// The layout of this version.
const LAYOUT: u32 = 1;

/// What is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    version: u32,
    /// How many slots a lock has for readers. A writer that looked at fewer would be beside readers.
    readers: usize,
}

impl Layout {
    fn text(self) -> String {
        format!("layout={} readers={}", self.version, self.readers)
    }

    /// Reads it, as far as every version writes it.
    fn read(text: &str) -> Option<Self> {
        let value = |key: &str| text.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let version = value("layout")?.parse().ok()?;
        Some(Self { version, readers: value("readers").and_then(|text| text.parse().ok()).unwrap_or(0) })
    }

    /// Why a client with this layout cannot use what another one has written.
    fn refusal(self, found: Self) -> Option<LockError> {
        let refused = |kind, cause: String| LockError::new(kind, Operation::Connect).because(cause);
        if found.version > self.version {
            let cause = format!(
                "its table is in layout {}, of a newer version of distlock, and this one knows layout {}",
                found.version, self.version
            );
            return Some(refused(ErrorKind::Unsupported, cause).remedy("update this program"));
        }
        (found.readers != self.readers).then(|| {
            let cause = format!(
                "other clients with this prefix have {} slots for readers, not {}",
                found.readers, self.readers
            );
            refused(ErrorKind::InvalidOption, cause).remedy(
                "use the same release of distlock everywhere, or end all clients, and delete the row whose name ends with \
                 |layout from distlock_locks",
            )
        })
    }
}

/// Checks that the clients of this table understand each other.
pub(crate) async fn agree(settings: &Settings, session: &mut Session) -> Result<(), Failure> {
    let ours = Layout { version: LAYOUT, readers: settings.dialect.manner.readers };
    let prefix = &settings.dialect.prefix;
    for _ in 0..2 {
        let answer = session.ask(Operation::Connect, statement::layout_of(prefix)).await?;
        let Some(text) = answer.value() else {
            session.ask(Operation::Connect, statement::write_layout(prefix, &ours.text())).await?;
            continue;
        };
        let found = Layout::read(text)
            .ok_or_else(|| Failure::Broken(nonsense(Operation::Connect, "it has no layout")))?;
        return ours.refusal(found).map_or(Ok(()), |error| Err(Failure::Broken(error)));
    }
    Err(Failure::Broken(nonsense(Operation::Connect, "it does not keep what is written down")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_layout_and_another_number_of_slots_are_refused() {
        let ours = Layout { version: 1, readers: 16 };
        assert_eq!(Layout::read(&ours.text()), Some(ours));
        assert!(ours.refusal(ours).is_none());
        let newer = Layout::read("layout=2 readers=16 and=more").unwrap();
        let error = ours.refusal(newer).unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("layout 2"), "{error}");
        let error = ours.refusal(Layout { version: 1, readers: 8 }).unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidOption);
        assert!(error.to_string().contains("8 slots for readers, not 16"), "{error}");
        assert_eq!(Layout::read(""), None);
    }
}
