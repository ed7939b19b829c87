//! Runs every test of the workspace: builds all of them at once, then runs the test programs side by side. `cargo test`
//! runs one program after the other, although most of them mostly wait: for leases to end, for servers to start.

mod order;
mod programs;
mod room;
mod side_by_side;
pub(crate) mod soak;
mod verdict;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::console::Console;
use crate::context::Context;
use crate::failure::Failure;
use order::Times;
use programs::Program;
use room::Room;
use side_by_side::{News, side_by_side};
use verdict::{Counts, Verdict};

/// After this time without news, the running programs are listed.
const SILENCE: Duration = Duration::from_secs(60);

/// A program that runs for longer than this hangs: it is many times what the slowest one takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// What the guard against a machine that stands still writes about a case that it repeats.
const RUN_AGAIN: &str = ": run again, ";

pub(crate) fn run(context: &Context) -> Result<(), Failure> {
    let metadata = context.metadata()?;
    // The options for all builds, so that nothing is built twice.
    let everything = [context.tier.packages(), &["--all-features"]].concat();
    let build =
        [&["test"], &everything[..], &["--no-run", "--message-format=json-render-diagnostics"]].concat();
    let mut programs = programs::read(&context.cargo(&build).stdout()?, &metadata, context.tier)?;
    programs = programs::split(programs, &order::named(&metadata, "runs"))?;
    programs.push(Program::doctests(
        context.cargo(&[&["test"], &everything[..], &["--doc", "--no-fail-fast"]].concat()),
    ));
    let logs = metadata.target_directory.join("suite").into_std_path_buf();
    fs::create_dir_all(&logs)
        .map_err(|error| Failure::new(format!("{} cannot be made: {error}", logs.display())))?;
    let times = Times::read(&logs.join("times.json"));
    let programs = order::arranged(programs, &metadata, context.tier, &times)?;
    let mut suite = Suite::new(context.console, programs.len(), times);
    suite.run(&programs, room::most(), &logs);
    suite.end()
}

/// The results of the programs so far.
struct Suite {
    console: Console,
    limit: Duration,
    total: usize,
    ended: usize,
    running: Vec<String>,
    counts: Counts,
    /// What failed with its log, and the command that repeats it.
    failed: Vec<(String, String)>,
    repeated: Vec<String>,
    times: Times,
}

impl Suite {
    fn new(console: Console, total: usize, times: Times) -> Self {
        Self {
            console,
            limit: LIMIT,
            total,
            ended: 0,
            running: Vec::new(),
            counts: Counts::default(),
            failed: Vec::new(),
            repeated: Vec::new(),
            times,
        }
    }

    fn run(&mut self, programs: &[Program], at_once: usize, logs: &Path) {
        let (limit, room) = (self.limit, Room::default());
        let work = |program: &Program| {
            let start = Instant::now();
            let verdict = program.run(&logs.join(program.log_name()), limit);
            room.leave();
            (verdict, start.elapsed())
        };
        side_by_side(
            programs,
            at_once,
            SILENCE,
            || room.enter(),
            work,
            |news| match news {
                News::Started(program) => {
                    self.running.push(program.name.clone());
                    self.console.status(&self.what_runs());
                }
                News::Ended(program, (verdict, took)) => {
                    self.ended += 1;
                    self.running.retain(|name| *name != program.name);
                    self.note(program, &verdict, took, &logs.join(program.log_name()));
                    self.console.status(&self.what_runs());
                }
                News::Silence => self.console.still(&self.what_runs()),
            },
        );
    }

    fn what_runs(&self) -> String {
        format!("{} of {} programs; now {}", self.ended, self.total, self.running.join(", "))
    }

    fn note(&mut self, program: &Program, verdict: &Verdict, took: Duration, log: &Path) {
        let output = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
        self.repeated.extend(output.lines().filter(|line| line.contains(RUN_AGAIN)).map(str::to_owned));
        match verdict {
            Verdict::Passed(counts) => {
                self.counts.add(counts);
                self.times.note(&program.name, took);
                self.console.passed(&format!("{}: {counts}", program.name), took);
            }
            Verdict::Failed(why) => {
                self.console.failed(&format!("{}, which {why}", program.name), took);
                eprintln!("{}", verdict::without_passed(&output));
                Console::detail(&format!("to repeat it: {}", program.repeat));
                let line = format!("{}, see {}", program.name, log.display());
                self.failed.push((line, program.repeat.clone()));
            }
        }
    }

    fn end(self) -> Result<(), Failure> {
        self.console.status("");
        self.times.keep();
        for line in &self.repeated {
            Console::detail(line);
        }
        Console::detail(&format!("{} cases were run again", self.repeated.len()));
        let Some((_, repeat)) = self.failed.first() else {
            Console::detail(&format!("{} programs, {}", self.total, self.counts));
            return Ok(());
        };
        let lines: Vec<_> = self.failed.iter().map(|(line, _)| line.as_str()).collect();
        let count = format!("{} of {} test programs failed:", lines.len(), self.total);
        Err(Failure::new([&[&count[..]], &lines[..]].concat().join("\n       ")).repeated_by(repeat))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;

    fn program(name: &str, script: &str) -> Program {
        Program {
            name: name.to_owned(),
            repeat: format!("repeat {name}"),
            process: Process::new("sh", &["-c", script]),
        }
    }

    fn outcome(programs: &[Program]) -> Result<(), Failure> {
        let logs =
            std::env::temp_dir().join(format!("xtask-suite-{}-{}", std::process::id(), programs.len()));
        fs::create_dir_all(&logs).unwrap();
        let mut suite = Suite::new(Console::new(), programs.len(), Times::default());
        suite.run(programs, 2, &logs);
        fs::remove_dir_all(&logs).unwrap();
        suite.end()
    }

    #[test]
    fn one_that_fails_does_not_keep_the_others_from_running_and_fails_the_suite() {
        let result = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";
        let programs = [
            program("bad", "echo no >&2; exit 1"),
            program("good", result),
            program("worse", "kill -9 $$"),
            program("last", result),
        ];
        let failure = outcome(&programs).unwrap_err();
        assert!(failure.to_string().contains("2 of 4"), "{failure}");
        assert!(failure.to_string().contains("bad") && failure.to_string().contains("worse"), "{failure}");
        assert!(["repeat bad", "repeat worse"].contains(&failure.repeat().unwrap()));
        assert_eq!(outcome(&[program("good", result)]), Ok(()));
    }

    #[test]
    fn one_that_hangs_is_killed_and_fails_the_suite() {
        let logs = std::env::temp_dir().join(format!("xtask-suite-{}-hangs", std::process::id()));
        fs::create_dir_all(&logs).unwrap();
        let mut suite = Suite::new(Console::new(), 1, Times::default());
        suite.limit = Duration::from_millis(100);
        suite.run(&[program("hanging", "exec sleep 60")], 1, &logs);
        let verdict = program("hanging", "exec sleep 60").run(&logs.join("again.log"), suite.limit);
        fs::remove_dir_all(&logs).unwrap();
        assert_eq!(verdict, Verdict::Failed("did not end within 100ms and was killed".to_owned()));
        assert!(suite.end().unwrap_err().to_string().contains("hanging.log"));
    }

    #[test]
    fn one_that_ends_well_without_a_result_has_not_passed() {
        assert!(outcome(&[program("silent", "exit 0"), program("cut off", "echo running 3 tests")]).is_err());
    }
}
