//! What stands in place of the faults without the feature `testing`: a server that answers every request at once.

use std::future::{Ready, ready};
use std::task::{Context, Poll};

use lock_core::{AttemptId, LockError, Operation};

use crate::MemoryOptions;

#[derive(Debug, Default)]
pub(super) struct Faults {}

#[allow(clippy::unused_self, reason = "the methods are those of the faults")]
impl Faults {
    pub(super) fn poll_outage(&self, _: AttemptId, _: &Context<'_>) -> Poll<Outage> {
        Poll::Pending
    }

    pub(super) fn watch(&self, _: AttemptId) -> Watch {
        Watch
    }

    pub(super) fn before(&self, _: Operation, _: &MemoryOptions) -> Ready<Result<Watch, LockError>> {
        ready(Ok(Watch))
    }

    pub(super) fn after(&self, _: Operation, _: Watch) -> Ready<Result<(), LockError>> {
        ready(Ok(()))
    }
}

pub(super) struct Watch;

/// There is none.
pub(super) enum Outage {}

impl Outage {
    pub(super) fn into_error(self) -> LockError {
        match self {}
    }
}
