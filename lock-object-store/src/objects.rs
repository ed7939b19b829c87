//! Reads and writes objects.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ErrorKind, LockError, Operation};
use lock_kit::unreachable;
use lock_register::{Register, Stored, Written};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion};

/// What a path has for the mark of a mapped name.
const MAPPED: &str = "%7E";

/// The objects below a prefix.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) prefix: String,
    /// The least time between two writes of an object.
    pub(crate) pace: Duration,
}

impl Objects {
    fn path(&self, key: &str) -> Path {
        Path::from(format!("{}/{key}", self.prefix))
    }
}

impl Register for Objects {
    type Version = UpdateVersion;

    async fn read(&self, key: &str) -> Result<Option<Stored<UpdateVersion>>, LockError> {
        let found = match self.store.get(&self.path(key)).await {
            Err(Error::NotFound { .. }) => return Ok(None),
            found => found.map_err(explain)?,
        };
        let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let content = found.bytes().await.map_err(explain)?;
        Ok(Some((content.to_vec(), version)))
    }

    async fn write(
        &self,
        key: &str,
        content: Vec<u8>,
        if_still: Option<&UpdateVersion>,
    ) -> Written<UpdateVersion> {
        let mode = if_still.map_or(PutMode::Create, |version| PutMode::Update(version.clone()));
        let options = PutOptions { mode, ..PutOptions::default() };
        match self.store.put_opts(&self.path(key), content.into(), options).await {
            Ok(written) => Written::Done(written.into()),
            // Also when the store was about to carry out another write.
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Written::Conflict,
            Err(error) => {
                let error = explain(error);
                // Whatever else there is may have been carried out: an answer of a server in between, a lost connection.
                if error.kind() == ErrorKind::Unreachable {
                    Written::Unknown(error)
                } else {
                    Written::Refused(error)
                }
            }
        }
    }

    async fn list(&self) -> Result<Vec<String>, LockError> {
        let found =
            self.store.list_with_delimiter(Some(&Path::from(&*self.prefix))).await.map_err(explain)?;
        let key = |path: &Path| Some(path.filename()?.replace(MAPPED, "~"));
        Ok(found.objects.iter().filter_map(|object| key(&object.location)).collect())
    }

    fn pace(&self) -> Duration {
        self.pace
    }
}

fn explain(error: Error) -> LockError {
    let (kind, remedy) = match &error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => (
            ErrorKind::Denied,
            "check the credentials, and that they may read and write objects below the prefix, and list the bucket",
        ),
        Error::NotFound { .. } => {
            (ErrorKind::InvalidOption, "check the name of the bucket, the region and the endpoint")
        }
        Error::NotImplemented { .. } | Error::NotSupported { .. } => {
            (ErrorKind::Unsupported, "use a store that writes on a condition")
        }
        Error::InvalidPath { .. } | Error::UnknownConfigurationKey { .. } => {
            (ErrorKind::InvalidOption, "check the prefix and the variables of the environment")
        }
        _ => return unreachable(Operation::Connect, root_cause(&error)).caused_by(error),
    };
    let explained = LockError::new(kind, Operation::Connect).because(root_cause(&error)).remedy(remedy);
    // Credentials may be renewed, and permissions be granted.
    let explained = if kind == ErrorKind::Denied { explained.retryable() } else { explained };
    explained.caused_by(error)
}

/// Why there is no client of the store: nothing has been sent.
pub(crate) fn unusable(error: Error) -> LockError {
    LockError::new(ErrorKind::InvalidOption, Operation::Configure)
        .because(root_cause(&error))
        .remedy("complete the URL, or the variables of the environment by which programs find this store")
        .caused_by(error)
}

/// What the client of the store says at last, and not how long it took.
fn root_cause(error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
