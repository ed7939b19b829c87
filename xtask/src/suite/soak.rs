//! `cargo xtask soak HOURS [SEED]`: looks for rare errors for as long as the user has time. Contests with random harm, the
//! cases of losses in real time, models in larger bounds and loops that only keep the processors busy run beside each
//! other. Everything ends with this program, and nothing of it leaves this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cargo_metadata::Metadata;

use super::programs::{self, Counts, Program, processors};
use crate::console::{DETAIL, FAILED, PASSED, readable, say};
use crate::context::{Context, Tier};
use crate::process::{self, HANGS};

/// How many preemptions the models of the core explore, and how many walks they take; the suite's are fewer.
const BOUNDS: [(&str, &str); 2] = [("LOOM_MAX_PREEMPTIONS", "5"), ("DISTLOCK_WALKS", "300000")];

pub(crate) fn run(arguments: &[String], context: &Context) -> Result<()> {
    let (time, seed) = parsed(arguments).context(
        "Usage: cargo xtask soak HOURS [SEED]\n\nHOURS may be a fraction. The same SEED repeats the same harm.",
    )?;
    let [mut losses, models] = ["losses", "models"].map(|list| in_turn(&context.metadata, list));
    losses.push(format!("conformance-tests --test soak -- soak {} {seed}", time.as_secs()));
    // Without an optimisation, the larger models do not end within hours.
    let programs = [built(context, &losses, None)?, built(context, &models, Some(3))?];
    let (folder, start) = (context.target("soak"), Instant::now());
    say(DETAIL, format_args!("seed {seed}; what fails is kept in {}", folder.display()));
    all_at_once(programs, &folder, start + time)?;
    say(PASSED, format_args!("soak in {}", readable(start.elapsed())));
    Ok(())
}

fn parsed(arguments: &[String]) -> Option<(Duration, u64)> {
    let (hours, seed) = match arguments {
        [hours] => (hours, None),
        [hours, seed] => (hours, Some(seed.parse().ok()?)),
        _ => return None,
    };
    let time = Duration::try_from_secs_f64(hours.parse::<f64>().ok()? * 3600.0).ok()?;
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    Some((time, seed.unwrap_or_else(now)))
}

/// Returns the first program of each crate that its list names, then the second of each, so that a short time sees them all.
fn in_turn(metadata: &Metadata, list: &str) -> Vec<String> {
    let (mut turns, mut named) = (BTreeMap::new(), programs::named(metadata, list));
    named.sort_by_cached_key(|name| {
        let turn = turns.entry(name.split(' ').next().map(str::to_owned)).or_insert(0);
        *turn += 1;
        *turn
    });
    named
}

/// Builds the programs with these names, which are such as `lock-core --test all -- walks::`. Copies them, so that a build
/// does not change what runs.
fn built(context: &Context, names: &[String], optimisation: Option<u8>) -> Result<Vec<Program>> {
    let parts = names.iter().filter_map(|name| name.split(" -- ").next()?.split_once(' '));
    let (packages, targets): (BTreeSet<_>, BTreeSet<_>) = parts.unzip();
    let mut cargo = context.cargo(&format!("test {}", Tier::Default.packages()));
    cargo.args(targets.into_iter().flat_map(str::split_whitespace));
    let setting =
        |package: &str| Some(format!("--config=profile.test.package.{package}.opt-level={}", optimisation?));
    cargo.args(packages.into_iter().filter_map(setting));
    let mut programs = programs::built(&mut cargo, Tier::All)?;
    for Program { name, command, .. } in &mut programs {
        *command = copied(command, &context.target("soak/programs"))
            .with_context(|| format!("{name} cannot be copied"))?;
    }
    let selected = |name: &String| {
        let (selection, words) = name.split_once(" -- ").unwrap_or((name, ""));
        let program = programs.iter().find(|program| program.name == selection);
        let mut program = program.with_context(|| format!("cargo has not built {selection}"))?.with(words);
        program.command.envs(BOUNDS);
        Ok(program)
    };
    names.iter().map(selected).collect()
}

/// Copies the program into the folder, and returns the call of the copy.
fn copied(command: &Command, folder: &Path) -> Result<Command> {
    let original = Path::new(command.get_program());
    let copy = folder.join(original.file_name().unwrap_or_default());
    fs::create_dir_all(folder)?;
    // Not over a copy that runs.
    let _ = fs::remove_file(&copy);
    fs::copy(original, &copy)?;
    Ok(process::copied(command, copy.as_os_str()))
}

/// The last one of the losses is the contests, which know when to end.
fn all_at_once([mut losses, mut models]: [Vec<Program>; 2], folder: &Path, until: Instant) -> Result<()> {
    let mut contests = losses.pop().context("there are no contests")?.command;
    contests.arg(folder);
    let is_over = AtomicBool::new(false);
    let spin = || {
        while !is_over.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    };
    let outcomes = thread::scope(|scope| {
        for _ in 0..processors().div_ceil(2) {
            scope.spawn(spin);
        }
        let contests = scope.spawn(|| process::run(&mut contests));
        let models =
            scope.spawn(|| models.iter_mut().try_for_each(|model| one(model, folder, until).map(drop)));
        let losses = repeated(losses, folder, until);
        let outcomes = [contests.join(), models.join(), Ok(losses)];
        is_over.store(true, Ordering::Relaxed);
        outcomes.map(|outcome| outcome.unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
    });
    together(outcomes)
}

fn repeated(mut losses: Vec<Program>, folder: &Path, until: Instant) -> Result<()> {
    let (mut counts, mut outcomes) = (Counts::default(), Vec::new());
    while Instant::now() < until && !losses.is_empty() {
        for cases in losses.iter_mut().take_while(|_| Instant::now() < until) {
            outcomes.push(one(cases, folder, until).map(|more| counts = counts.plus(more)));
        }
    }
    say(DETAIL, format_args!("losses in real time: {} groups of cases, {counts}", outcomes.len()));
    together(outcomes)
}

/// Returns one error that says what all of them say.
fn together(outcomes: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let failed: Vec<_> =
        outcomes.into_iter().filter_map(|outcome| Some(format!("{:#}", outcome.err()?))).collect();
    ensure!(failed.is_empty(), failed.join("\n"));
    Ok(())
}

/// Runs a program until it ends, or the time is over. Keeps its output if it fails.
fn one(program: &mut Program, folder: &Path, until: Instant) -> Result<Counts> {
    let (start, log) = (Instant::now(), folder.join(program.log_name()));
    let outcome = program.run(&log, until.saturating_duration_since(start));
    let Program { name, repeat, .. } = program;
    let (states, took) = (states(&programs::output(&log)), readable(start.elapsed()));
    match outcome {
        Ok(counts) if counts == Counts::default() => bail!("{name} has no such cases: look at its manifest"),
        Ok(counts) => {
            say(PASSED, format_args!("{name}: {counts}{states} in {took}"));
            Ok(counts)
        }
        Err(why) if Instant::now() >= until && why.to_string().starts_with(HANGS) => {
            say(DETAIL, format_args!("{name}: not at its end when the time was over{states}"));
            Ok(Counts::default())
        }
        Err(why) => {
            say(FAILED, format_args!("{name}, which {why:#} after {took}"));
            let size = fs::metadata(&log).map_or(0, |file| file.len());
            let kept = log.with_extension(format!("failed-{size}"));
            let kept = fs::rename(&log, &kept).map_or(log, |()| kept);
            bail!("{name} {why:#}, see {}; to repeat it: {repeat}", kept.display())
        }
    }
}

/// Returns how many states a model has explored, if its output says so.
fn states(output: &str) -> String {
    let states = output.lines().filter_map(|line| line.strip_suffix(" states")?.parse::<u64>().ok());
    Some(states.sum::<u64>()).filter(|sum| *sum > 0).map_or_else(String::new, |sum| format!(", {sum} states"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::context::metadata_of;

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

    #[test]
    fn the_crates_take_turns() {
        let of = |name, losses: &[&str]| json!({"name": name, "metadata": {"suite": {"losses": losses}}});
        let metadata = metadata_of([of("a", &["x", "y"]), of("b", &["z"])]);
        assert_eq!(in_turn(&metadata, "losses"), ["a x", "b z", "a y"]);
    }

    #[test]
    fn what_a_model_has_explored_is_added_up() {
        assert_eq!(states("12 states\nand\n30 states\nsome states\n"), ", 42 states");
        assert_eq!(states("running 1 test\n"), "");
    }
}
