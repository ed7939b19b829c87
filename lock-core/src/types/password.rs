//! A text that must stay hidden, and where a password comes from, each time a client needs it.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use crate::types::{ErrorKind, LockError, Operation};

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
    fn of_file(file: &Path) -> Result<Self, LockError> {
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

type Reading = Pin<Box<dyn Future<Output = Result<Secret, LockError>> + Send>>;

/// A password, or where to get it for each new connection, so that it may change while a client lives.
///
/// ```
/// use lock_core::{Password, Secret};
///
/// let fixed = Password::from(Secret::new("hunter2"));
/// let token = Password::from_fn(|| async { Ok::<_, std::io::Error>(Secret::new("short-lived")) });
/// assert_eq!(format!("{fixed:?} {token:?}"), "(hidden) (of the program)");
/// ```
#[derive(Clone)]
pub struct Password(Source);

#[derive(Clone)]
enum Source {
    Fixed(Secret),
    File(PathBuf),
    Program(Arc<dyn Fn() -> Reading + Send + Sync>),
}

impl Password {
    /// The first line of a file, read anew for each connection.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`], naming the file, when it cannot be read now or is empty.
    pub fn of_file(file: impl Into<PathBuf>) -> Result<Self, LockError> {
        let file = file.into();
        Secret::of_file(&file)?;
        Ok(Self(Source::File(file)))
    }

    /// What a function of the program returns, which is called for each connection: a token of a cloud's identity
    /// service, for example. It runs on the client's engine, so it must not block; the client limits its time as it
    /// limits connecting. Its error must not contain a secret: it becomes part of the error of connecting, which is
    /// retryable.
    pub fn from_fn<F, E>(read: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Secret, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        Self(Source::Program(Arc::new(move || {
            let read = read();
            Box::pin(async move { read.await.map_err(|error| not_given(&*error.into())) })
        })))
    }

    /// Returns the password of this moment. Backends call it for each connection, through
    /// `lock_kit::read_password`, which limits its time.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`], naming the file, when it cannot be read or is empty; [`ErrorKind::Denied`] with the
    /// error of the program's function. Both are retryable: a file may be about to be replaced.
    ///
    /// # Cancel safety
    /// Dropping the future drops that of the program's function.
    pub async fn read(&self) -> Result<Secret, LockError> {
        match &self.0 {
            Source::Fixed(secret) => Ok(secret.clone()),
            Source::File(file) => Secret::of_file(file).map_err(LockError::retryable),
            Source::Program(read) => read().await,
        }
    }
}

fn invalid(cause: String) -> LockError {
    LockError::new(ErrorKind::InvalidOption, Operation::Configure).because(cause)
}

fn not_given(error: &dyn Error) -> LockError {
    LockError::new(ErrorKind::Denied, Operation::Connect)
        .because(format!("the password callback failed: {error}"))
        .retryable()
}

impl From<Secret> for Password {
    fn from(secret: Secret) -> Self {
        Self(Source::Fixed(secret))
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Fixed(secret) => secret.fmt(formatter),
            Source::File(file) => write!(formatter, "(in {})", file.display()),
            Source::Program(_) => formatter.write_str("(of the program)"),
        }
    }
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

    #[tokio::test]
    async fn a_file_is_read_each_time_and_named_when_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        let missing = Password::of_file(&file).unwrap_err();
        assert!(
            !missing.is_retryable() && missing.to_string().contains(&*file.to_string_lossy()),
            "{missing}"
        );
        std::fs::write(&file, "old\n").unwrap();
        let password = Password::of_file(&file).unwrap();
        assert_eq!(password.read().await.unwrap().reveal(), "old");
        std::fs::write(&file, "new\n").unwrap();
        assert_eq!(password.read().await.unwrap().reveal(), "new");
        std::fs::remove_file(&file).unwrap();
        let gone = password.read().await.unwrap_err();
        assert!(gone.is_retryable() && gone.to_string().contains(&*file.to_string_lossy()), "{gone}");
    }

    #[tokio::test]
    async fn a_function_is_called_each_time_and_its_error_is_part_of_ours() {
        let count = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let calls = Arc::clone(&count);
        let password = Password::from_fn(move || {
            let call = calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            async move { if call == 1 { Err("the vault is sealed") } else { Ok(Secret::new(call.to_string())) } }
        });
        assert_eq!(password.read().await.unwrap().reveal(), "0");
        let error = password.read().await.unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("the vault is sealed"), "{error}");
        assert_eq!(password.read().await.unwrap().reveal(), "2");
    }
}
