//! A named case, and how it is run.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use libtest_mimic::Trial;

use crate::stall;

/// No case takes that long unless something hangs.
const LONGEST: Duration = Duration::from_secs(150);

type Running = Pin<Box<dyn Future<Output = Outcome>>>;

/// One case: a name, and what it does.
pub struct Case {
    name: String,
    run: Box<dyn Fn() -> Running + Send>,
}

impl Case {
    pub fn new<F: Future<Output = Outcome> + 'static>(
        module: &str,
        name: &str,
        run: impl Fn() -> F + Send + 'static,
    ) -> Self {
        Self { name: format!("{module}::{name}"), run: Box::new(move || Box::pin(run())) }
    }

    pub fn into_trial(self) -> Trial {
        let Self { name, run } = self;
        let title = name.clone();
        Trial::test(name, move || {
            stall::judge(&title, || once(&*run)).map_err(|failure| failure.to_string().into())
        })
    }
}

fn once(run: &dyn Fn() -> Running) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::time::timeout(LONGEST, run())
            .await
            .unwrap_or_else(|_| Err(Failure::new(format!("not at its end after {LONGEST:?}"))))
    })
}

/// Lists the cases of a module.
macro_rules! cases {
    ($module:literal: $($name:ident),* $(,)?) => {
        pub(crate) fn cases() -> Vec<$crate::case::Case> {
            vec![$($crate::case::Case::new($module, stringify!($name), $name)),*]
        }
    };
}

/// Ends the case with a failure unless the condition is true.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(::conformance_tests::Failure::new(format!($($text)+)));
        }
    };
}

pub(crate) use {cases, ensure};
