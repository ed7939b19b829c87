//! The layout of what clients keep in their table, and of the names of their locks. It is written down in the table, so that a client
//! refuses to use what it would not understand.

use lock_core::{ErrorKind, LockError, Operation};
use lock_sql::{Failure, nonsense};

use crate::dialect::{Session, Settings};
use crate::parts::READER_SLOTS;
use crate::statement;

/// The layout of this version.
const LAYOUT: u32 = 1;

/// Checks that the clients of this table understand each other. They also have the same number of slots for readers: a writer that looked
/// at fewer would be beside readers.
pub(crate) async fn agree(settings: &Settings, session: &mut Session) -> Result<(), Failure> {
    let ours = format!("layout={LAYOUT} readers={READER_SLOTS}");
    let prefix = &settings.dialect.prefix;
    for _ in 0..2 {
        let answer = session.ask(Operation::Connect, statement::layout_of(prefix)).await?;
        match answer.value() {
            Some(found) if found == ours => return Ok(()),
            Some(found) => return Err(Failure::Broken(refusal(&ours, found))),
            None => drop(session.ask(Operation::Connect, statement::write_layout(prefix, &ours)).await?),
        }
    }
    Err(Failure::Broken(nonsense(Operation::Connect, "it does not keep what is written down")))
}

/// Why a client with this layout cannot use what another one has written.
fn refusal(ours: &str, found: &str) -> LockError {
    LockError::new(ErrorKind::Unsupported, Operation::Connect)
        .because(format!("its table is of another release of distlock: {found}, and not {ours}"))
        .remedy(
            "use the same release everywhere: update this program, or end all clients, and delete the row whose name ends \
             with |layout from distlock_locks",
        )
}
