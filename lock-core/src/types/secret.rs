//! A text that must stay hidden.

use std::fmt;
use std::path::Path;

use crate::types::error::{ErrorKind, LockError, Operation};

/// A password, or another text that only the server may see. Its `Debug` shows neither its content nor its length.
///
/// ```
/// use lock_core::Secret;
///
/// let password = Secret::new("hunter2");
/// assert_eq!(format!("{password:?}"), "(hidden)");
/// assert_eq!(password.reveal(), "hunter2");
/// ```
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Reads the first line of a file.
    ///
    /// ```no_run
    /// use std::path::Path;
    ///
    /// let password = lock_core::Secret::of_file(Path::new("/run/secrets/locks"))?;
    /// # Ok::<(), lock_core::LockError>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`], naming the file, when it cannot be read or is empty.
    pub fn of_file(file: &Path) -> Result<Self, LockError> {
        let text = std::fs::read_to_string(file).map_err(|error| {
            invalid(format!("the password_file {} cannot be read: {error}", file.display())).caused_by(error)
        })?;
        match text.lines().next().unwrap_or_default() {
            "" => Err(invalid(format!("the password_file {} is empty", file.display()))
                .remedy("write the password into its first line")),
            password => Ok(Self::new(password)),
        }
    }

    /// Returns the text itself. It must not get into an error, a log or a `Debug` text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("(hidden)")
    }
}

fn invalid(cause: String) -> LockError {
    LockError::new(ErrorKind::InvalidOption, Operation::Configure).because(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_nothing_of_itself() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "(hidden)");
        assert_eq!(Secret::new("hunter2").reveal(), "hunter2");
    }

    #[test]
    fn a_file_has_it_in_its_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        for (text, password) in
            [("hunter2", "hunter2"), ("hunter2\n", "hunter2"), ("hunter2\r\nmore", "hunter2")]
        {
            std::fs::write(&file, text).unwrap();
            assert_eq!(Secret::of_file(&file).unwrap().reveal(), password);
        }
        std::fs::write(&file, "\n").unwrap();
        let empty = Secret::of_file(&file).unwrap_err().to_string();
        assert!(empty.contains(&*file.to_string_lossy()) && empty.contains("empty"), "{empty}");
        let missing = Secret::of_file(Path::new("/nonexistent/x")).unwrap_err().to_string();
        assert!(missing.contains("/nonexistent/x"), "{missing}");
    }
}
