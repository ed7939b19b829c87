//! `cargo xtask soak HOURS [SEED]`: looks for rare errors for as long as the user has time. Contests with random harm, the
//! cases of losses in real time, models in larger bounds and loops that only keep the processors busy run beside each
//! other. Everything ends with this program, and nothing of it leaves this machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use cargo_metadata::{Metadata, Package};

use super::order::processors;
use super::programs::{self, Program};
use super::verdict::{Counts, Verdict};
use crate::console::Console;
use crate::context::Context;
use crate::failure::Failure;
use crate::process::HANGS;
use crate::tier::Tier;

const CONTESTS: &str = "conformance-tests --test soak";

/// How many preemptions the models of the core explore, and how many walks they take; the suite's are fewer.
const BOUNDS: [(&str, &str); 2] = [("LOOM_MAX_PREEMPTIONS", "5"), ("DISTLOCK_WALKS", "300000")];

pub(crate) fn run(arguments: &[String], context: &Context) -> ExitCode {
    let Some((time, seed)) = parsed(arguments) else {
        eprintln!(
            "Usage: cargo xtask soak HOURS [SEED]\n\nHOURS may be a fraction. The same SEED repeats the same harm."
        );
        return ExitCode::from(64);
    };
    let start = Instant::now();
    match Soak::prepare(context, seed).and_then(|soak| soak.run(time)) {
        Ok(()) => {
            context.console.passed("soak", start.elapsed());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            context.console.error(&failure.to_string());
            ExitCode::FAILURE
        }
    }
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

struct Soak {
    console: Console,
    seed: u64,
    folder: PathBuf,
    programs: Vec<Program>,
    /// Groups of cases that end leases and sessions in real time.
    losses: Vec<Selected>,
    models: Vec<Selected>,
}

/// A test program, and the words that select cases or enlarge bounds.
struct Selected {
    package: String,
    target: String,
    words: Vec<String>,
}

impl Selected {
    /// Reads a list of the tables `[package.metadata.suite]`, whose entries are such as `--test faults -- silence::`.
    fn all(metadata: &Metadata, list: &str) -> Vec<Self> {
        let of = |package: &Package| {
            let entries = package.metadata["suite"][list]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|entry| entry.as_str());
            let select = |entry: &str| {
                let (target, words) = entry.split_once(" -- ").unwrap_or((entry, ""));
                let words = words.split_whitespace().map(str::to_owned).collect();
                Self { package: package.name.to_string(), target: target.to_owned(), words }
            };
            entries.map(select).collect::<Vec<_>>()
        };
        // The first of each crate, then the second of each, so that a short time sees them all.
        let mut lists: Vec<_> = metadata.packages.iter().map(|package| of(package).into_iter()).collect();
        let longest = lists.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        (0..longest).flat_map(|_| lists.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>()).collect()
    }
}

impl Soak {
    /// Builds the programs, and copies them, so that a build does not change what runs.
    fn prepare(context: &Context, seed: u64) -> Result<Self, Failure> {
        let metadata = context.metadata()?;
        let folder = metadata.target_directory.join("soak").into_std_path_buf();
        let copies = folder.join("programs");
        fs::create_dir_all(&copies)
            .map_err(|error| Failure::new(format!("{} cannot be made: {error}", copies.display())))?;
        let (losses, models) = (Selected::all(&metadata, "losses"), Selected::all(&metadata, "models"));
        let build = |targets: &[&str], settings: &[String]| {
            let targets: BTreeSet<_> = targets.iter().collect();
            let common = ["--all-features", "--no-run", "--message-format=json-render-diagnostics"];
            let mut arguments = [&["test"], Tier::Default.packages(), &common].concat();
            arguments.extend(settings.iter().flat_map(|setting| ["--config", setting]));
            arguments.extend(targets.into_iter().flat_map(|target| target.split_whitespace()));
            programs::read(&context.cargo(&arguments).stdout()?, &metadata, Tier::All)
        };
        let targets = |of: &[Selected]| of.iter().map(|each| each.target.clone()).collect::<Vec<_>>();
        let (of_losses, of_models) = (targets(&losses), targets(&models));
        let contests = CONTESTS.split_once(' ').map_or(CONTESTS, |(_, target)| target);
        let mut programs =
            build(&of_losses.iter().map(String::as_str).chain([contests]).collect::<Vec<_>>(), &[])?;
        // Otherwise the larger ones do not end within hours.
        let optimised = |model: &Selected| format!("profile.test.package.{}.opt-level=3", model.package);
        let optimised: BTreeSet<_> = models.iter().map(optimised).collect();
        let of_models: Vec<_> = of_models.iter().map(String::as_str).collect();
        programs.extend(build(&of_models, &optimised.into_iter().collect::<Vec<_>>())?);
        for program in &mut programs {
            program.process = program.process.clone().copied_into(&copies)?;
        }
        Ok(Self { console: context.console, seed, folder, programs, losses, models })
    }

    fn program(&self, name: &str, words: &[&str]) -> Result<Program, Failure> {
        let program = self.programs.iter().find(|program| program.name == name);
        let program = program.ok_or_else(|| Failure::new(format!("cargo has not built {name}")))?;
        let process = program.process.clone().with_arguments(words);
        Ok(Program {
            name: format!("{name} {}", words.join(" ")).trim_end().to_owned(),
            repeat: format!("{} -- {}", program.repeat, words.join(" ")),
            process: BOUNDS.iter().fold(process, |process, (name, value)| process.with_variable(name, value)),
        })
    }

    fn run(&self, time: Duration) -> Result<(), Failure> {
        let (until, is_over) = (Instant::now() + time, AtomicBool::new(false));
        Console::detail(&format!("seed {}; what fails is kept in {}", self.seed, self.folder.display()));
        let (contests, models, losses) = std::thread::scope(|scope| {
            for _ in 0..processors().div_ceil(2) {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let contests = scope.spawn(|| self.contests(time));
            let models = scope.spawn(|| self.models(until));
            let losses = self.losses(until);
            let (contests, models) = (contests.join(), models.join());
            is_over.store(true, Ordering::Relaxed);
            (contests, models, losses)
        });
        let panicked = || Err(Failure::new("a thread panicked"));
        let all = [contests.unwrap_or_else(|_| panicked()), models.unwrap_or_else(|_| panicked()), losses];
        let failed: Vec<_> =
            all.into_iter().filter_map(Result::err).map(|failure| failure.to_string()).collect();
        if failed.is_empty() { Ok(()) } else { Err(Failure::new(failed.join("\n"))) }
    }

    fn contests(&self, time: Duration) -> Result<(), Failure> {
        let (seconds, seed) = (time.as_secs().to_string(), self.seed.to_string());
        let folder = self.folder.display().to_string();
        self.program(CONTESTS, &["soak", &seconds, &seed, &folder])?.process.run()
    }

    fn models(&self, until: Instant) -> Result<(), Failure> {
        self.models.iter().try_for_each(|model| self.one(model, until).map(drop))
    }

    fn losses(&self, until: Instant) -> Result<(), Failure> {
        let (mut groups, mut counts) = (0, Counts::default());
        let mut failed = Vec::new();
        for cases in self.losses.iter().cycle().take_while(|_| Instant::now() < until) {
            match self.one(cases, until) {
                Ok(more) => counts.add(&more),
                Err(failure) => failed.push(failure.to_string()),
            }
            groups += 1;
        }
        Console::detail(&format!("losses in real time: {groups} groups of cases, {counts}"));
        if failed.is_empty() { Ok(()) } else { Err(Failure::new(failed.join("\n"))) }
    }

    /// Runs a program until it ends, or the time is over. Keeps its output if it fails.
    fn one(&self, selected: &Selected, until: Instant) -> Result<Counts, Failure> {
        let words: Vec<_> = selected.words.iter().map(String::as_str).collect();
        let program = self.program(&format!("{} {}", selected.package, selected.target), &words)?;
        let start = Instant::now();
        let log = self.folder.join(program.log_name().replace(':', ""));
        let verdict = program.run(&log, until.saturating_duration_since(start));
        match verdict {
            Verdict::Passed(counts) if counts == Counts::default() => {
                Err(Failure::new(format!("{} has no such cases: look at its manifest", program.name)))
            }
            Verdict::Passed(counts) => {
                let states = states(&log);
                self.console.passed(&format!("{}: {counts}{states}", program.name), start.elapsed());
                Ok(counts)
            }
            Verdict::Failed(why) if Instant::now() >= until && why.starts_with(HANGS) => {
                Console::detail(&format!(
                    "{}: not at its end when the time was over{}",
                    program.name,
                    states(&log)
                ));
                Ok(Counts::default())
            }
            Verdict::Failed(why) => {
                self.console.failed(&format!("{}, which {why}", program.name), start.elapsed());
                let kept =
                    log.with_extension(format!("failed-{}", fs::metadata(&log).map_or(0, |file| file.len())));
                let kept = fs::rename(&log, &kept).map_or(log, |()| kept);
                let text = format!(
                    "{} {why}, see {}; to repeat it: {}",
                    program.name,
                    kept.display(),
                    program.repeat
                );
                Err(Failure::new(text))
            }
        }
    }
}

/// Returns how many states a model has explored, if its output says so.
fn states(log: &Path) -> String {
    let output = fs::read_to_string(log).unwrap_or_default();
    let states = output.lines().filter_map(|line| line.strip_suffix(" states")?.parse::<u64>().ok());
    match states.sum() {
        0 => String::new(),
        sum => format!(", {sum} states"),
    }
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
