//! Where a password comes from, each time a client needs it.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::secret::Secret;

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
    /// [`BackendContext::password`](crate::BackendContext::password), which limits its time.
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
