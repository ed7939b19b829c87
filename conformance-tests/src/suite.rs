//! Runs the cases, and makes sure that all of them ran.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::{During, Failure, Outcome};
use libtest_mimic::{Arguments, Completion, Trial};
use lock_core::spi::Mutex;
use lock_core::{Capabilities, CharacterSet, ClientBuilder, NameRules, Reach};

use crate::case::{Case, Need, contradiction};
use crate::cases::all;
use crate::harness::Harness;
use crate::stage::Stage;
use crate::stall;
use crate::tier::Tier;
use crate::worker;

/// The longest stall of the machine that a case has to tolerate. It is well below the shortest time within which a
/// lease has to be renewed.
const BEARABLE: Duration = Duration::from_millis(400);

/// A case that takes longer than this many times the harness's patience is considered to hang.
const HANGS_AFTER: u32 = 10;

const THREADS_PER_PROCESSOR: usize = 3;

/// The result of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The backend does what the case expects.
    Passed,
    /// The backend does not do it.
    Failed(Failure),
    /// The case could not be run, for this reason.
    Ignored(String),
}

/// The main function of a test program for the backend of `H`; [`conformance_suite!`](crate::conformance_suite) calls
/// it.
///
/// It understands the arguments of an ordinary test program. If a case has started this process, it runs as a worker
/// instead.
#[must_use]
pub fn main<H: Harness>() -> ExitCode {
    main_with::<H>(std::env::args().collect())
}

/// As [`main`], with these arguments, of which the first is the program: for a program that reads some itself. It is started
/// again with all that it was started with, to be a worker.
#[must_use]
pub fn main_with<H: Harness>(arguments: Vec<String>) -> ExitCode {
    match worker::requested() {
        Some((address, label)) => worker::serve_process::<H>(&address, &label),
        None => run_all::<H>(&with_threads(Arguments::from_iter(arguments))),
    }
}

/// Runs more cases at once than there are processors, because most cases mostly wait, unless the user specifies another
/// number.
fn with_threads(arguments: Arguments) -> Arguments {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.test_threads.or(Some(processors * THREADS_PER_PROCESSOR));
    Arguments { test_threads: threads, ..arguments }
}

fn run_all<H: Harness>(arguments: &Arguments) -> ExitCode {
    let ended = Arc::new(Mutex::new(BTreeSet::new()));
    let cases = selected(all(), Tier::of_this_run(), H::differs_in());
    if cases.len() < all().len() {
        println!("{} more cases run with DISTLOCK_TESTS=all", all().len() - cases.len());
    }
    let trials = cases.iter().map(|case| trial::<H>(*case, Arc::clone(&ended))).collect();
    let conclusion = libtest_mimic::run(arguments, trials);
    if conclusion.has_failed() || is_partial(arguments) {
        return conclusion.exit_code();
    }
    let ended = ended.lock();
    let missing = missing(&cases, &ended);
    if missing.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: these cases of the list have not run: {}", missing.join(", "));
    ExitCode::FAILURE
}

/// Returns the cases of the tier; `differs` are the groups of [`Harness::differs_in`].
fn selected(cases: &[Case], tier: Tier, differs: Option<&[&str]>) -> Vec<Case> {
    match (tier, differs) {
        (Tier::Default, Some(groups)) => cases.iter().filter(|case| case.sees(groups)).copied().collect(),
        _ => cases.to_vec(),
    }
}

fn trial<H: Harness>(case: Case, ended: Arc<Mutex<BTreeSet<&'static str>>>) -> Trial {
    Trial::ignorable_test(case.name, move || {
        let verdict = H::left_out().map_or_else(|| run_case(&case, || start::<H>(case)), Verdict::Ignored);
        ended.lock().insert(case.name);
        match verdict {
            Verdict::Passed => Ok(Completion::Completed),
            Verdict::Failed(failure) => Err(failure.into()),
            Verdict::Ignored(reason) => Ok(Completion::ignored_with(reason)),
        }
    })
}

async fn start<H: Harness>(case: Case) -> Outcome<Box<dyn Harness>> {
    let harness = if case.disturbs_the_server() { H::start_alone().await? } else { H::start().await? };
    Ok(Box::new(harness))
}

/// Returns whether the user asked for only some of the cases.
fn is_partial(arguments: &Arguments) -> bool {
    arguments.list || arguments.ignored || arguments.filter.is_some() || !arguments.skip.is_empty()
}

/// Returns the cases of the list that are not among those that ended.
fn missing(cases: &[Case], ended: &BTreeSet<&'static str>) -> Vec<&'static str> {
    cases.iter().map(|case| case.name).filter(|name| !ended.contains(name)).collect()
}

/// Runs one case against a backend, on a runtime of its own.
///
/// A failure proves nothing about the backend if the machine hung for so long that a lease may have ended. Then the
/// case is run again, in a new place from `start`, at most a few times.
pub fn run_case<F>(case: &Case, start: impl Fn() -> F) -> Verdict
where
    F: Future<Output = Outcome<Box<dyn Harness>>>,
{
    stall::judge(case.name, BEARABLE, || run_once(case, &start)).unwrap_or_else(Verdict::Failed)
}

/// Runs the case once, and returns whether it passed or was ignored.
fn run_once<F>(case: &Case, start: impl Fn() -> F) -> Outcome<Verdict>
where
    F: Future<Output = Outcome<Box<dyn Harness>>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let verdict = runtime.block_on(async {
        let harness = start().await.during("start the harness")?;
        play(case, harness).await
    });
    // A case that failed may have left a thread that never ends.
    runtime.shutdown_background();
    verdict
}

async fn play(case: &Case, harness: Box<dyn Harness>) -> Outcome<Verdict> {
    if let Some(reason) = why_not(case, &*harness).await? {
        return Ok(Verdict::Ignored(reason));
    }
    let limit: Duration = harness.patience() * HANGS_AFTER;
    let stage = Arc::new(Stage::new(harness, case.leases()));
    // Run in a task, because the current task owns the locks, and because a panic ends there.
    let running = tokio::spawn((case.run)(Arc::clone(&stage)));
    let ended = tokio::time::timeout(limit, running).await;
    ended.map_err(|_| Failure::new(format!("the case has not ended within {limit:?}")))???;
    stage.finish().await?;
    Ok(Verdict::Passed)
}

/// Returns why the case cannot be run against this backend.
async fn why_not(case: &Case, harness: &dyn Harness) -> Outcome<Option<String>> {
    let mut capabilities = Capabilities::new("any", Reach::Process, NameRules::new(CharacterSet::ANY, 0));
    // To connect costs more than many a case.
    if case.needs.iter().any(|need| !matches!(need, Need::Ability(_) | Need::Lease)) {
        let client = harness.client(ClientBuilder::new()).await.during("make a client")?;
        capabilities = client.capabilities().clone();
        client.close(harness.patience()).await.during("close a client that did nothing")?;
    }
    match contradiction(harness, &capabilities) {
        Some(failure) => Err(failure),
        None => Ok(case.needs.iter().find_map(|need| need.unmet(harness, &capabilities))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_did_not_run_is_missed() {
        let mut ended: BTreeSet<_> = all().iter().map(Case::name).collect();
        assert_eq!(missing(all(), &ended), Vec::<&str>::new());
        let left_out = all()[3].name;
        ended.remove(left_out);
        assert_eq!(missing(all(), &ended), [left_out]);
    }

    #[test]
    fn only_a_second_way_in_the_default_tier_leaves_cases_out() {
        let count = |tier, differs| selected(all(), tier, differs).len();
        assert_eq!(count(Tier::Default, None), all().len());
        assert_eq!(count(Tier::All, Some(&["tokens"])), all().len());
        let seen = count(Tier::Default, Some(&["tokens", "options"]));
        assert!(seen > 5 && seen < all().len() / 2, "{seen} cases");
        assert!(count(Tier::Default, Some(&["tokens"])) < seen, "no case of the other group");
    }

    fn page(name: &str) -> String {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/backends");
        std::fs::read_to_string(std::path::Path::new(folder).join(name)).unwrap()
    }

    #[test]
    fn the_documentation_names_cases_that_there_are() {
        let text = page("writing-one.md");
        let named: Vec<_> = text
            .split('`')
            .filter(|part| part.split_once("::").is_some_and(|(group, _)| groups().contains(group)))
            .filter(|name| !name.contains('\u{2026}'))
            .collect();
        assert!(named.len() >= 5, "only {named:?} found");
        for name in named {
            assert!(all().iter().any(|case| case.name == name), "there is no case {name:?}");
        }
    }

    fn groups() -> BTreeSet<&'static str> {
        all().iter().map(Case::group).collect()
    }

    /// One row for each need, with the groups of its cases; the first is for the cases that need nothing.
    fn rows() -> Vec<String> {
        let mut needs: Vec<Need> = Vec::new();
        for need in all().iter().flat_map(|case| case.needs) {
            if !needs.contains(need) {
                needs.push(*need);
            }
        }
        let row = |title: String, belongs: &dyn Fn(&Case) -> bool| {
            let groups: BTreeSet<_> = all().iter().filter(|case| belongs(case)).map(Case::group).collect();
            format!("| {title} | {} |", groups.into_iter().collect::<Vec<_>>().join(", "))
        };
        let mut rows = vec![row("nothing".to_owned(), &|case| case.needs.is_empty())];
        rows.extend(needs.iter().map(|need| row(need.to_string(), &|case| case.needs.contains(need))));
        rows
    }

    #[test]
    fn the_documentation_says_what_each_ability_runs() {
        let text = page("conformance.md");
        for row in rows() {
            assert!(
                text.lines().any(|line| line == row),
                "the page has no line\n{row}\nof\n{}",
                rows().join("\n")
            );
        }
    }

    #[test]
    fn no_two_cases_have_the_same_name() {
        let names: BTreeSet<_> = all().iter().map(Case::name).collect();
        assert_eq!(names.len(), all().len());
    }
}
