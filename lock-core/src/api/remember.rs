//! Remembering slots of locks, below what users call.

use std::time::Duration;

use crate::api::client::LockClient;
use crate::api::options::check_remembering;
use crate::spi::{Memo, Remembered};
use crate::types::error::{LockError, Operation};

impl LockClient {
    /// Makes the server remember a slot of a lock for `keep`, unless it remembers the slot already.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) when the server cannot remember;
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName) and
    /// [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption); others when the outcome is not known.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the server may or may not remember the slot.
    #[doc(hidden)]
    pub async fn remember(
        &self,
        name: impl AsRef<str>,
        slot: impl Into<String>,
        keep: Duration,
    ) -> Result<Remembered, LockError> {
        let name = self.full_name(name)?;
        check_remembering(self.capabilities()).map_err(|error| error.on(&name))?;
        let memo = Memo::new(name.clone(), self.capabilities().names.apply(&name), slot)?;
        self.take_slot(&memo, keep).await
    }

    /// Makes the server remember a slot.
    pub(super) async fn take_slot(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        let asked = memo.clone();
        let remembered = self.on_engine(Operation::Remember, move |remote| async move {
            remote.backend.remember(&asked, keep).await
        });
        remembered.await.map_err(|error| error.on(memo.name()).during(Operation::Remember))
    }
}
