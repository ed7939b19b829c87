//! A named case, and how it is run.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

pub use crate::ensure;
use crate::{Failure, Outcome};
use libtest_mimic::Trial;

/// Lists the cases of a module: `cases!("module": function, …)` creates a function `cases()` from these asynchronous
/// functions without arguments. `cases!(on Type, "module": function, …)` is for functions that get a value to run on.
pub use crate::fault_cases as cases;

use crate::stall;

/// Well below the shortest time within which a lease has to be renewed.
const BEARABLE: Duration = Duration::from_millis(300);

type Running = Pin<Box<dyn Future<Output = Outcome>>>;

/// One case: a name, and a function of the value that it runs on.
pub struct Case<On = ()> {
    name: String,
    run: Box<dyn Fn(On) -> Running + Send>,
}

impl<On: 'static> Case<On> {
    /// Creates the case of a module with this name.
    pub fn new<F: Future<Output = Outcome> + 'static>(
        module: &str,
        name: &str,
        run: impl Fn(On) -> F + Send + 'static,
    ) -> Self {
        Self { name: format!("{module}::{name}"), run: Box::new(move |on| Box::pin(run(on))) }
    }

    /// Binds the case to a value that it runs on. Its name then begins with `place`.
    #[must_use]
    pub fn on(self, place: &str, on: On) -> Case
    where
        On: Clone + Send,
    {
        let Self { name, run } = self;
        Case { name: format!("{place}::{name}"), run: Box::new(move |()| run(on.clone())) }
    }
}

impl Case {
    /// Turns the case into a part of a program. It fails when it takes longer than `longest`.
    pub(super) fn into_trial(self, longest: Duration) -> Trial {
        let Self { name, run } = self;
        let title = name.clone();
        Trial::test(name, move || {
            stall::judge(&title, BEARABLE, || once(&*run, longest))
                .map_err(|failure| failure.to_string().into())
        })
    }
}

impl<On> fmt::Debug for Case<On> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

fn once(run: &dyn Fn(()) -> Running, longest: Duration) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::time::timeout(longest, run(()))
            .await
            .unwrap_or_else(|_| Err(Failure::new(format!("not at its end after {longest:?}"))))
    })
}

#[doc(hidden)]
#[macro_export]
macro_rules! fault_cases {
    ($module:literal: $($name:ident),* $(,)?) => {
        pub(crate) fn cases() -> ::std::vec::Vec<$crate::faults::case::Case> {
            ::std::vec![$($crate::faults::case::Case::new($module, stringify!($name), |()| $name())),*]
        }
    };
    (on $place:ty, $module:literal: $($name:ident),* $(,)?) => {
        pub(crate) fn cases() -> ::std::vec::Vec<$crate::faults::case::Case<$place>> {
            ::std::vec![$($crate::faults::case::Case::new($module, stringify!($name), $name)),*]
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_case_is_named_by_its_module_and_by_what_it_runs_on() {
        let case = Case::new("doors", "they_open", |_: u32| async { Ok(()) });
        assert_eq!(case.on("here", 1).into_trial(LONG).name(), "here::doors::they_open");
    }

    #[test]
    fn a_case_that_hangs_fails() {
        let hangs = |()| Box::pin(std::future::pending()) as Running;
        let failure = once(&hangs, Duration::from_millis(1));
        assert_eq!(failure, Err(Failure::new("not at its end after 1ms")));
    }
}
