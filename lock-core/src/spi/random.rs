//! Random numbers.

use crate::types::{ErrorKind, LockError, Operation};

/// Returns bytes that no other process has, for numbers such as `u128::from_ne_bytes(random_bytes(operation)?)`.
///
/// # Errors
/// [`ErrorKind::Internal`] if the system has no random numbers.
pub fn random_bytes<const N: usize>(operation: Operation) -> Result<[u8; N], LockError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        LockError::new(ErrorKind::Internal, operation)
            .because(format!("the system has no random numbers: {error}"))
    })?;
    Ok(bytes)
}
