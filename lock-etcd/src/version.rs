//! Versions of the server whose known faults concern locks.

use lock_core::{ErrorKind, LockError, Operation};
use lock_entries::Failed;

use crate::connection::Connection;

/// For each release line the first version without the faults: before it, a server that was suspended may answer reads with what it
/// knew before.
const SOUND: [[u32; 3]; 3] = [[3, 4, 42], [3, 5, 28], [3, 6, 9]];

/// Warns of a server with known faults, or refuses it.
pub(crate) async fn check_version(connection: &Connection, is_strict: bool) -> Result<(), LockError> {
    let told = connection.version().await.map_err(|failure| failure.explain(Operation::Connect))?;
    let Some(version) = told else {
        tracing::info!(target: "distlock", "the server does not tell this user its version");
        return Ok(());
    };
    let Some(first_sound) = repaired_in(&version) else { return Ok(()) };
    let cause = format!(
        "etcd {version} may answer reads with old data after it was suspended, and a client may then believe that a lock is free"
    );
    let remedy = format!("update the servers to {first_sound} or newer");
    if is_strict {
        return Err(LockError::new(ErrorKind::Unsupported, Operation::Connect).because(cause).remedy(remedy));
    }
    tracing::warn!(target: "distlock", "{cause}: {remedy}");
    Ok(())
}

/// The version that has the repairs, if this one lacks them.
fn repaired_in(version: &str) -> Option<String> {
    let numbers = version.split(['-', '+']).next()?.split('.').map(|part| part.parse().ok());
    let read: Option<Vec<u32>> = numbers.collect();
    let read = read?;
    let line = SOUND.iter().find(|sound| sound[..2] >= read[..2.min(read.len())])?;
    (read[..] < line[..]).then(|| line.map(|number| number.to_string()).join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_with_known_faults_is_named_with_its_repair() {
        for (version, repaired) in [
            ("3.3.27", Some("3.4.42")),
            ("3.4.23", Some("3.4.42")),
            ("3.4.42", None),
            ("3.5.1", Some("3.5.28")),
            ("3.5.27-rc.1", Some("3.5.28")),
            ("3.5.30", None),
            ("3.6.8", Some("3.6.9")),
            ("3.6.9", None),
            ("3.7.0", None),
            ("4.0.0", None),
            ("unknown", None),
        ] {
            assert_eq!(repaired_in(version).as_deref(), repaired, "{version}");
        }
    }
}
