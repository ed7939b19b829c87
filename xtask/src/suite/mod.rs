//! Runs every test of the workspace: builds all of them at once, then runs the test programs side by side. `cargo test`
//! runs one program after the other, although most of them mostly wait: for leases to end, for servers to start. So more of
//! them run at once than there are processors, as long as the processors have time left.

pub(crate) mod programs;
pub(crate) mod soak;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::console::{DETAIL, FAILED, PASSED, readable, say};
use crate::context::Context;
use crate::process;
use programs::{Counts, Program, Times, processors};

/// After this time without news, the running programs are listed.
const SILENCE: Duration = Duration::from_secs(20);

/// A program that runs for longer than this hangs: it is many times what the slowest one takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(40 * 60);

/// For how long the processors are watched, and how soon a new program shows its weight.
const LOOK: Duration = Duration::from_secs(1);

/// The share of a processor's time that has to be left for one more program, in percent: hundredths of a second while
/// [`LOOK`] lasts.
const LEFT: usize = 30;

/// So many programs for each processor, and their servers, fit into the memory of a small machine.
const MOST: usize = 5;

/// What the guard against a machine that stands still writes about a case that it repeats.
const RUN_AGAIN: &str = ": run again, ";

/// The name of the file of [`Times`], beside the logs.
const TIMES: &str = "times.json";

pub(crate) fn run(context: &Context) -> Result<()> {
    let (metadata, tier, selection) = (&context.metadata, context.tier, context.selection(context.tier));
    let programs = programs::built(&mut context.cargo(&format!("test {selection}")), tier)?;
    let mut programs = programs::split(programs, &programs::named(metadata, "runs"))?;
    // With the options of the other build, so that nothing is built twice.
    let command = context.cargo(&format!("test {selection} --doc --no-fail-fast"));
    programs.push(Program { name: "doctests".to_owned(), repeat: process::line(&command), command });
    let logs = context.target("suite");
    fs::create_dir_all(&logs).with_context(|| format!("{} cannot be made", logs.display()))?;
    programs::arrange(&mut programs, metadata, tier, &times(&logs))?;
    judge(&side_by_side(programs, &logs, LIMIT), &logs)
}

/// Reads the file of the last run, if there is one.
fn times(logs: &Path) -> Times {
    serde_json::from_str(&fs::read_to_string(logs.join(TIMES)).unwrap_or_default()).unwrap_or_default()
}

/// A program that has ended, and how long it took.
type Ended = (Program, Result<Counts>, Duration);

/// Starts the programs in their order, each as soon as there is room for it.
fn side_by_side(programs: Vec<Program>, logs: &Path, limit: Duration) -> Vec<Ended> {
    let (total, mut waiting) = (programs.len(), programs.into_iter().peekable());
    let (mut running, mut ended, mut heard) = (Vec::<String>::new(), Vec::new(), Instant::now());
    let (sender, news) = std::sync::mpsc::channel::<Ended>();
    thread::scope(|scope| {
        while ended.len() < total {
            if let Ok(news) = news.try_recv() {
                running.retain(|name| *name != news.0.name);
                tell(&news, logs);
                ended.push(news);
                heard = Instant::now();
            } else if let Some(mut program) = waiting.next_if(|_| has_room(running.len(), is_idle)) {
                running.push(program.name.clone());
                let (sender, start) = (sender.clone(), Instant::now());
                scope.spawn(move || {
                    let outcome = program.run(&logs.join(program.log_name()), limit);
                    // The receiver waits for all of them.
                    let _ = sender.send((program, outcome, start.elapsed()));
                });
            } else {
                thread::sleep(LOOK / 20);
            }
            if heard.elapsed() >= SILENCE {
                say(DETAIL, format_args!("{} of {total} programs; now {}", ended.len(), running.join(", ")));
                heard = Instant::now();
            }
        }
    });
    ended
}

fn tell((program, outcome, took): &Ended, logs: &Path) {
    let name = &program.name;
    match outcome {
        Ok(counts) => say(PASSED, format_args!("{name}: {counts} in {}", readable(*took))),
        Err(why) => {
            let output = programs::output(&logs.join(program.log_name()));
            let what = format!("{name}, which {why:#} after {}", readable(*took));
            say(FAILED, format_args!("{what}\n{}", programs::failures(&output)));
        }
    }
}

/// Keeps the times, lists the cases that were run again, and fails if a program has failed.
fn judge(ended: &[Ended], logs: &Path) -> Result<()> {
    let (mut times, mut counts, mut failed, mut again) = (times(logs), Counts::default(), Vec::new(), 0);
    for (program, outcome, took) in ended {
        let log = logs.join(program.log_name());
        for line in programs::output(&log).lines().filter(|line| line.contains(RUN_AGAIN)) {
            say(DETAIL, line);
            again += 1;
        }
        times.insert(program.name.clone(), u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        if let Ok(more) = outcome {
            counts = counts.plus(*more);
        } else {
            let Program { name, repeat, .. } = program;
            failed.push(format!("\n       {name}, see {}; to repeat it: {repeat}", log.display()));
        }
    }
    // Without the file the next run has another order, and nothing else is different.
    let _ = fs::write(logs.join(TIMES), serde_json::json!(times).to_string());
    say(DETAIL, format_args!("{again} cases were run again"));
    let count = format!("{} of {} test programs failed:", failed.len(), ended.len());
    ensure!(failed.is_empty(), "{count}{}", failed.concat());
    say(DETAIL, format_args!("{} programs, {counts}", ended.len()));
    Ok(())
}

/// Returns whether one more program fits beside those that run.
fn has_room(running: usize, is_idle: impl FnOnce() -> bool) -> bool {
    running < processors() || running < MOST * processors() && is_idle()
}

/// Returns whether the processors had time left while this watched. Without numbers it is assumed.
fn is_idle() -> bool {
    let time = || idle(&fs::read_to_string("/proc/stat").ok()?);
    let before = time();
    thread::sleep(LOOK);
    before.zip(time()).is_none_or(|(before, after)| after.saturating_sub(before) >= LEFT * processors())
}

/// Returns the idle time of all processors so far, in hundredths of a second, from the first line of a text: `cpu  user nice
/// system idle iowait …`.
fn idle(stat: &str) -> Option<usize> {
    let words = stat.lines().next()?.split_whitespace().skip(4).take(2);
    words.map(|word| word.parse::<usize>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    const RESULT: &str = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";

    fn program(name: &str, script: &str) -> Program {
        let mut command = process::command("sh", "-c");
        command.arg(script);
        Program { name: name.to_owned(), repeat: format!("repeat {name}"), command }
    }

    /// Runs the programs with their logs in a new folder, which is the working folder of each.
    fn outcome(name: &str, limit: Duration, mut programs: Vec<Program>) -> (Result<()>, Times) {
        let logs = std::env::temp_dir().join(format!("xtask-suite-{}-{name}", std::process::id()));
        fs::create_dir_all(&logs).unwrap();
        for program in &mut programs {
            program.command.current_dir(&logs);
        }
        let ended = side_by_side(programs, &logs, limit);
        let outcome = judge(&ended, &logs);
        let times = times(&logs);
        fs::remove_dir_all(&logs).unwrap();
        (outcome, times)
    }

    #[test]
    fn one_that_fails_does_not_keep_the_others_from_running_and_fails_the_suite() {
        let programs = vec![
            program("bad", "echo no >&2; exit 1"),
            program("good", RESULT),
            program("worse", "kill -9 $$"),
            program("last", RESULT),
        ];
        let (outcome, times) = outcome("bad", LIMIT, programs);
        let failure = outcome.unwrap_err().to_string();
        assert!(failure.contains("2 of 4"), "{failure}");
        assert!(failure.contains("bad.log") && failure.contains("worse.log"), "{failure}");
        assert!(failure.contains("to repeat it: repeat bad"), "{failure}");
        assert_eq!(times.into_keys().collect::<Vec<_>>(), ["bad", "good", "last", "worse"]);
    }

    #[test]
    fn programs_that_pass_are_a_suite_that_passes() {
        let (outcome, times) = outcome("good", LIMIT, vec![program("good", &format!("sleep 0.1; {RESULT}"))]);
        outcome.unwrap();
        assert!(times["good"] >= 100, "{times:?}");
    }

    #[test]
    fn nothing_to_do_is_done_at_once() {
        outcome("nothing", LIMIT, Vec::new()).0.unwrap();
    }

    #[test]
    fn as_many_run_at_once_as_there_are_processors() {
        // Each waits for all others: with fewer at once this would fail.
        let together = |number| {
            let all = processors();
            let wait = format!("until [ $(ls here-* | wc -l) = {all} ]; do sleep 0.01; done");
            program(&format!("number {number}"), &format!("touch here-{number}; {wait}; {RESULT}"))
        };
        outcome("together", LIMIT, (0..processors()).map(together).collect()).0.unwrap();
    }

    #[test]
    fn one_that_hangs_is_killed_and_fails_the_suite() {
        let limit = Duration::from_millis(100);
        let failure = outcome("hangs", limit, vec![program("hanging", "exec sleep 60")]).0.unwrap_err();
        assert!(failure.to_string().contains("hanging.log"), "{failure}");
        let verdict = program("hanging", "exec sleep 60").run(Path::new("/dev/null"), limit);
        assert_eq!(verdict.unwrap_err().to_string(), "did not end within 100ms and was killed");
    }

    #[test]
    fn one_that_ends_well_without_a_result_or_badly_with_one_has_not_passed() {
        for (name, script) in [("silent", "exit 0"), ("cut off", "echo running 3 tests")] {
            assert!(outcome(name, LIMIT, vec![program(name, script)]).0.is_err());
        }
        let bad = format!("{RESULT}; exit 1");
        assert!(outcome("good and bad", LIMIT, vec![program("good and bad", &bad)]).0.is_err());
    }

    #[test]
    fn the_time_that_is_left_is_read() {
        assert_eq!(idle("cpu  100 0 100 300 7 0 0 0 0 0\ncpu0 1"), Some(307));
        assert_eq!((idle("intr a b c d e f"), idle("")), (None, None));
    }

    #[test]
    fn the_guard_writes_what_is_counted() {
        assert!(include_str!("../../../conformance-tests/src/stall.rs").contains(RUN_AGAIN));
    }

    #[test]
    fn there_is_room_for_a_program_on_each_processor_without_a_look_and_for_more_after_one() {
        let unseen = || -> bool { unreachable!("nothing has to be watched") };
        assert!(has_room(processors() - 1, unseen));
        assert!(has_room(processors(), || true) && !has_room(processors(), || false));
        assert!(!has_room(MOST * processors(), unseen));
    }
}
