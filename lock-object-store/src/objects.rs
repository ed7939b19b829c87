//! Reads and writes objects.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ErrorKind, LockError, Operation};
use lock_kit::unreachable;
use lock_register::{Register, Stored, Written};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::{self, DELIMITER, Path};
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion};

/// What a path has for the mark of a mapped name.
const MAPPED: &str = "%7E";

/// How many keys a page of a list has at most.
const PAGE: usize = 1000;

/// Behind a key, it makes one that comes after all that begin so.
const LAST: char = char::MAX;

/// A client of a store.
pub(crate) trait Store: ObjectStore + PaginatedListStore {}

impl<T: ObjectStore + PaginatedListStore> Store for T {}

/// The objects below a prefix.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) store: Arc<dyn Store>,
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

    /// A key that is no path, such as one with an empty part, fails the page that has it. So the page is asked for in smaller ones, until
    /// that key is alone, and then what comes after it.
    async fn list(&self) -> Result<Vec<String>, LockError> {
        let below = format!("{}{DELIMITER}", self.prefix);
        let (mut keys, mut options) = (Vec::new(), PaginatedListOptions::default());
        options.delimiter = Some(DELIMITER.into());
        let mut count = PAGE;
        loop {
            options.max_keys = Some(count);
            match self.store.list_paginated(Some(&below), options.clone()).await {
                Ok(page) => {
                    let key = |path: &Path| Some(path.filename()?.replace(MAPPED, "~"));
                    keys.extend(page.result.objects.iter().filter_map(|object| key(&object.location)));
                    options.page_token = page.page_token.filter(|token| !token.is_empty());
                    if options.page_token.is_none() {
                        return Ok(keys);
                    }
                }
                Err(Error::InvalidPath { .. }) if count > 1 => count /= 2,
                Err(Error::InvalidPath {
                    source: path::Error::EmptySegment { path } | path::Error::BadSegment { path, .. },
                }) => {
                    // No lock's key begins so, but with a dot.
                    let end = if path.ends_with('.') { '!' } else { LAST };
                    (options.offset, options.page_token) = (Some(format!("{path}{end}")), None);
                    count = PAGE;
                }
                Err(error) => return Err(explain(error)),
            }
        }
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
