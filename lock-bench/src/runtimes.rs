//! The runtimes on which the locks are used.

use std::future::Future;

use serde::Serialize;
use tokio::runtime::Builder;

use crate::failure::{Context, Outcome};

/// As many as the smallest server has, and the same on every machine.
const WORKERS: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum RuntimeKind {
    /// One thread
    CurrentThread,
    /// Two worker threads
    MultiThread,
}

impl RuntimeKind {
    pub(crate) const ALL: [Self; 2] = [Self::CurrentThread, Self::MultiThread];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::CurrentThread => "current_thread",
            Self::MultiThread => "multi_thread",
        }
    }

    /// Runs `task` to its end as a task of a runtime of this kind, as servers do, and not on the thread that calls
    /// `block_on`.
    pub(crate) fn run<T: Send + 'static>(
        self,
        task: impl Future<Output = Outcome<T>> + Send + 'static,
    ) -> Outcome<T> {
        let mut builder = match self {
            Self::CurrentThread => Builder::new_current_thread(),
            Self::MultiThread => Builder::new_multi_thread(),
        };
        if self == Self::MultiThread {
            builder.worker_threads(WORKERS);
        }
        let runtime = builder.enable_all().build().context("a runtime")?;
        let outcome = runtime.block_on(async { tokio::spawn(task).await.context("the measurement") })?;
        runtime.shutdown_background();
        outcome
    }
}
