//! Versions of the server whose known faults concern locks.

use lock_core::{ErrorKind, LockError, Operation};
use tonic::Code;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::messages::{Status, Text};

/// For each release line the first version without the faults: before it, a server that was suspended may answer reads with what it
/// knew before.
const SOUND: [[u32; 3]; 3] = [[3, 4, 42], [3, 5, 28], [3, 6, 9]];

/// Warns of a server with known faults; refuses it, and one that does not say its version, if that `is_strict`.
pub(crate) async fn check_version(connection: &Connection, is_strict: bool) -> Result<(), Failure> {
    let (cause, remedy) = match connection.ask(Status {}).await {
        Ok(Text { text: version }) => {
            let Some(first_sound) = repaired_in(&version) else { return Ok(()) };
            let fault = "may answer reads with old data after it was suspended, and a client may then believe that a lock is free";
            (format!("etcd {version} {fault}"), format!("update the servers to {first_sound} or newer"))
        }
        Err(Failure::Told(status)) if is_strict && status.code() == Code::PermissionDenied => (
            "the server tells this user no version, and may have known faults".to_owned(),
            "leave out strict=on and look at its version yourself, or give the user the role root".to_owned(),
        ),
        Err(Failure::Told(status)) if status.code() == Code::PermissionDenied => return Ok(()),
        Err(failure) => return Err(failure),
    };
    if is_strict {
        let error = LockError::new(ErrorKind::Unsupported, Operation::Connect);
        return Err(Failure::Refused(error.because(cause).remedy(remedy)));
    }
    tracing::warn!(target: "distlock", server = %connection.host, "{cause}: {remedy}");
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
