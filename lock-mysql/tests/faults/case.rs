//! A named case, and how it is run on a server of one flavour.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use conformance_tests::servers::MySqlFlavour;
use conformance_tests::{Failure, Outcome};
use libtest_mimic::Trial;

use crate::stall;

/// No case takes that long unless something hangs.
const LONGEST: Duration = Duration::from_mins(4);

type Running = Pin<Box<dyn Future<Output = Outcome>>>;

/// One case: a name, and what it does.
pub struct Case {
    name: String,
    run: Box<dyn Fn(MySqlFlavour) -> Running + Send>,
}

impl Case {
    pub fn new<F: Future<Output = Outcome> + 'static>(
        module: &str,
        name: &str,
        run: impl Fn(MySqlFlavour) -> F + Send + 'static,
    ) -> Self {
        let run = Box::new(move |flavour| Box::pin(run(flavour)) as Running);
        Self { name: format!("{module}::{name}"), run }
    }

    pub fn into_trial(self, flavour: MySqlFlavour) -> Trial {
        let Self { name, run } = self;
        let title = format!("{}::{name}", flavour.skip_word());
        Trial::test(title.clone(), move || {
            stall::judge(&title, || once(flavour, &*run)).map_err(|failure| failure.to_string().into())
        })
    }
}

fn once(flavour: MySqlFlavour, run: &dyn Fn(MySqlFlavour) -> Running) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::time::timeout(LONGEST, run(flavour))
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
