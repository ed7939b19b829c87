//! `cargo xtask soak HOURS [SEED]`: looks for rare errors for as long as the user has time. Contests with random harm, the
//! cases of losses in real time, models in larger bounds and loops that only keep the processors busy run beside each
//! other. Everything ends with this program, and nothing of it leaves this machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::programs::{self, Counts, Program, processors};
use crate::console::{DETAIL, FAILED, PASSED, readable, say};
use crate::context::{Context, Tier};
use crate::process::{self, HANGS};

/// How many preemptions the models of the core explore, how many walks they take and states they visit; the suite's are fewer.
const BOUNDS: [(&str, &str); 3] =
    [("LOOM_MAX_PREEMPTIONS", "5"), ("DISTLOCK_WALKS", "300000"), ("DISTLOCK_SEARCH", "100000")];

pub(crate) fn run(arguments: &[String], context: &Context) -> Result<()> {
    let (time, seed) = parsed(arguments).context(
        "Usage: cargo xtask soak HOURS [SEED]\n\nHOURS may be a fraction. The same SEED repeats the same harm.",
    )?;
    let [mut names, models] = ["losses", "models"].map(|list| programs::named(&context.metadata, list));
    names.push(format!("conformance-tests --test soak -- soak {} {seed}", time.as_secs()));
    let count = names.len();
    let mut losses = built(context, &[names, models].concat(), count)?;
    let models = losses.split_off(count);
    let (folder, start) = (context.target("soak"), Instant::now());
    fs::create_dir_all(&folder)?;
    say(DETAIL, format_args!("seed {seed}; what fails is kept in {}", folder.display()));
    all_at_once(losses, models, &folder, start + time)?;
    say(PASSED, format_args!("soak in {}", readable(start.elapsed())));
    Ok(())
}

fn parsed(arguments: &[String]) -> Option<(Duration, u64)> {
    let ([hours] | [hours, _]) = arguments else { return None };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seed = arguments.get(1).map_or(Some(now), |seed| seed.parse().ok())?;
    Some((Duration::try_from_secs_f64(hours.parse::<f64>().ok()? * 3600.0).ok()?, seed))
}

/// Builds the programs with these names, which are such as `lock-core --test all -- walks::`.
///
/// The crates of the models, which begin at `models`, are optimised: without that, the larger ones do not end within hours. All
/// others use these crates, so no build of the same target changes what runs.
fn built(context: &Context, names: &[String], models: usize) -> Result<Vec<Program>> {
    let parts: Vec<_> = names.iter().filter_map(|name| name.split(" -- ").next()?.split_once(' ')).collect();
    let targets: BTreeSet<_> = parts.iter().map(|(_, target)| *target).collect();
    let optimised: BTreeSet<_> = parts[models..].iter().map(|(package, _)| *package).collect();
    let setting = |package| format!("--config=profile.test.package.{package}.opt-level=3");
    let mut cargo = context.cargo(&format!("test {}", context.selection(Tier::Default)));
    cargo.args(targets.into_iter().flat_map(str::split_whitespace));
    cargo.args(optimised.into_iter().map(setting));
    let programs = programs::built(&mut cargo, Tier::All)?;
    let selected = |name: &String| {
        let (selection, words) = name.split_once(" -- ").unwrap_or((name, ""));
        let program = programs.iter().find(|program| program.name == selection);
        let mut program = program.with_context(|| format!("cargo has not built {selection}"))?.with(words);
        program.command.envs(BOUNDS);
        Ok(program)
    };
    names.iter().map(selected).collect()
}

/// The last one of the losses is the contests, which know when to end.
fn all_at_once(mut losses: Vec<Program>, models: Vec<Program>, folder: &Path, until: Instant) -> Result<()> {
    let mut contests = losses.pop().context("there are no contests")?.command;
    contests.arg(folder);
    let is_over = AtomicBool::new(false);
    let outcomes = thread::scope(|scope| {
        for _ in 0..processors().div_ceil(2) {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let contests = scope.spawn(|| process::run(&mut contests));
        let models = scope.spawn(|| repeated(models, folder, until));
        let losses = repeated(losses, folder, until);
        let outcomes = [contests.join(), models.join(), Ok(losses)];
        is_over.store(true, Ordering::Relaxed);
        outcomes.map(|outcome| outcome.unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
    });
    together(outcomes)
}

/// Runs the programs one after the other, again and again.
fn repeated(mut programs: Vec<Program>, folder: &Path, until: Instant) -> Result<()> {
    let mut outcomes = Vec::new();
    while Instant::now() < until && !programs.is_empty() {
        let in_time = programs.iter_mut().take_while(|_| Instant::now() < until);
        outcomes.extend(in_time.map(|program| one(program, folder, until)));
    }
    together(outcomes)
}

/// Returns one error that says what all of them say.
fn together(outcomes: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let errors = outcomes.into_iter().filter_map(Result::err);
    let failed: Vec<_> = errors.map(|error| format!("{error:#}")).collect();
    ensure!(failed.is_empty(), failed.join("\n"));
    Ok(())
}

/// Runs a program until it ends, or the time is over. Keeps its output if it fails.
fn one(program: &mut Program, folder: &Path, until: Instant) -> Result<()> {
    let (start, log) = (Instant::now(), folder.join(program.log_name()));
    let outcome = program.run(&log, until.saturating_duration_since(start));
    let (Program { name, repeat, .. }, took) = (program, readable(start.elapsed()));
    match outcome {
        Ok(counts) if counts == Counts::default() => bail!("{name} has no such cases: look at its manifest"),
        Ok(counts) => say(PASSED, format_args!("{name}: {counts} in {took}")),
        Err(why) if Instant::now() >= until && why.to_string().starts_with(HANGS) => {
            say(DETAIL, format_args!("{name}: not at its end when the time was over"));
        }
        Err(why) => {
            say(FAILED, format_args!("{name}, which {why:#} after {took}"));
            let size = fs::metadata(&log).map_or(0, |file| file.len());
            let kept = log.with_extension(format!("failed-{size}"));
            let kept = fs::rename(&log, &kept).map_or(log, |()| kept);
            bail!("{name} {why:#}, see {}; to repeat it: {repeat}", kept.display())
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_may_be_a_fraction_and_a_seed_is_kept() {
        let parsed = |words: &[&str]| parsed(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(parsed(&["0.5", "7"]), Some((Duration::from_secs(1800), 7)));
        assert!(parsed(&["2"]).is_some_and(|(time, _)| time == Duration::from_secs(7200)));
        assert_eq!(
            (parsed(&[]), parsed(&["-1"]), parsed(&["1", "x"]), parsed(&["inf"])),
            (None, None, None, None)
        );
    }
}
