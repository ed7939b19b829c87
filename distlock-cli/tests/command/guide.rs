//! The scripts of `docs/guide.md` and the pages that belong to it, as they stand there.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::{Running, Sandbox, assert_code, until, write_program};

const PAGES: [&str; 5] = [
    include_str!("../../../docs/guide.md"),
    include_str!("../../../docs/connecting.md"),
    include_str!("../../../docs/elections.md"),
    include_str!("../../../docs/several-locks.md"),
    include_str!("../../../docs/sharing.md"),
];

/// The blocks of this language, in the order of the pages.
fn blocks(language: &str) -> Vec<&'static str> {
    let opening = format!("\n```{language}\n");
    let blocks = PAGES.iter().flat_map(|page| page.split(&opening).skip(1));
    blocks.map(|block| block.split("\n```").next().unwrap()).collect()
}

/// The script on the pages that contains this text.
fn script(text: &str) -> &'static str {
    blocks("sh").into_iter().find(|block| block.contains(text)).unwrap()
}

/// The arrays of strings after `keyword` in the guide's Dockerfile.
fn words(keyword: &str) -> Vec<String> {
    let line = blocks("dockerfile")[0].lines().find_map(|line| line.strip_prefix(keyword)).unwrap();
    serde_json::from_str(line).unwrap()
}

/// A folder with the programs that the scripts call, and with locks.
pub(crate) struct Machine(Sandbox);

impl Machine {
    pub(crate) fn with(locks: Sandbox) -> Self {
        let machine = Self(locks);
        for name in ["report.sh", "migrate.sh", "poll.sh"] {
            machine.program(name, "echo ran >> runs");
        }
        machine
    }

    fn program(&self, name: &str, script: &str) {
        write_program(&self.0.file(name), &format!("#!/bin/sh\n{script}\n"));
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.0.file("runs")).unwrap_or_default().lines().count()
    }

    /// A script that finds `distlock` and the programs of this machine first.
    fn command(&self, script: &str) -> Command {
        let distlock = Path::new(env!("CARGO_BIN_EXE_distlock")).parent().unwrap();
        let folder = self.0.file("");
        let path =
            [folder.to_str().unwrap(), distlock.to_str().unwrap(), &std::env::var("PATH").unwrap()].join(":");
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(folder).stdin(Stdio::null());
        command.env("PATH", path).env("DISTLOCK_URL", self.0.url());
        command
    }

    fn run(&self, script: &str) -> Output {
        self.command(script).output().unwrap()
    }
}

/// A test for each recipe: `recipes!(…)` with what makes an `Option` of something that lives as long as the test, and of
/// the sandbox of its locks.
macro_rules! recipes {
    ($start:expr) => {
        crate::guide::recipes!(
            $start,
            [
                a_cron_job_does_nothing_while_the_last_one_runs,
                a_night_whose_report_has_run_is_not_reported_again,
                a_late_clock_finds_the_pause_after_a_job,
                a_night_that_failed_is_done_again_until_it_succeeds,
                a_container_runs_the_report_under_the_lock,
                a_program_runs_on_the_leader_alone,
                exports_run_beside_each_other_and_the_import_alone,
                a_large_render_and_a_small_one_use_all_licences,
                a_unit_ends_with_the_code_that_it_counts_as_success,
                a_recipe_of_make_runs_under_the_lock,
            ]
        );
    };
    ($start:expr, [$($recipe:ident),+ $(,)?]) => {
        $(
            #[test]
            fn $recipe() {
                if let Some((_server, locks)) = $start {
                    crate::guide::$recipe(&crate::guide::Machine::with(locks));
                }
            }
        )+
    };
}
pub(crate) use recipes;

mod files {
    super::recipes!(Some(((), crate::support::Sandbox::new())));
}

/// With the program that cargo would run.
#[test]
fn the_first_command_of_the_readme_prints_what_a_reader_expects() {
    let readme = include_str!("../../../README.md");
    let arguments =
        readme.lines().find_map(|line| line.strip_prefix("cargo run -p distlock-cli -- ")).unwrap();
    let quoted = arguments.rsplit('"').nth(1).unwrap();
    let output = Machine::with(Sandbox::new()).run(&format!("distlock {arguments}"));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{quoted}\n"));
}

/// The tutorial, pasted into a shell. Its pauses are as long as they have to be.
#[test]
fn a_reader_of_the_tutorial_sees_what_it_says() {
    let machine = Machine::with(Sandbox::new());
    let held =
        "while distlock status report | grep -q 'is free' && distlock status account | grep -q 'is free'";
    let next = "until [ -e balance ] || distlock status report | grep -q '1 waiting'";
    machine.program(
        "sleep",
        &format!(
            "case $1 in 1) {held}; do :; done;; 5) {next}; do :; done;; \
             *) exec /bin/sleep $1;; esac"
        ),
    );
    let page = include_str!("../../../docs/tutorial.md");
    let scripts: Vec<_> =
        page.split("\n```sh\n").skip(1).map(|block| block.split("\n```").next().unwrap()).collect();
    let seen = |script: &str| {
        let output = machine.run(script);
        String::from_utf8(output.stdout).unwrap()
    };
    let first = seen(&format!("{}\nwait", scripts[0]));
    let order = ["one works", "is held by pid", "two works", "three works"].map(|text| first.find(text));
    assert!(order.is_sorted() && order[0].is_some(), "{first}");
    assert_eq!(seen(scripts[1]), "the lock is free\n");
    let late = seen(&scripts[2..].join("\n"));
    assert!(late.contains("refused: 50 has token ") && late.ends_with("100\n"), "{late}");
    assert_eq!(scripts.len(), 4);
}

#[test]
fn every_block_of_the_guide_has_its_test() {
    let counts = ["sh", "dockerfile", "ini", "make"].map(|language| blocks(language).len());
    assert_eq!(counts, [10, 1, 1, 1]);
    let rust = blocks("rust").len() + blocks("rust,no_run").len();
    let all: usize = PAGES.iter().map(|page| format!("{page}\n").matches("\n```\n").count()).sum();
    assert_eq!(counts.iter().sum::<usize>() + rust, all, "another language");
}

pub(crate) fn a_cron_job_does_nothing_while_the_last_one_runs(machine: &Machine) {
    let mut holder = machine.0.hold("nightly-report");
    assert_code(&machine.run(script("-- ./report.sh")), 0, "held");
    assert_eq!(machine.runs(), 0);
    holder.close_input();
    assert_eq!(holder.code(), 0);
    assert_code(&machine.run(script("-- ./report.sh")), 0, "free");
    assert_eq!(machine.runs(), 1);
}

pub(crate) fn a_night_whose_report_has_run_is_not_reported_again(machine: &Machine) {
    for (night, reports) in [("2026-11-22", 1), ("2026-11-22", 1), ("2026-11-23", 2)] {
        machine.program("date", &format!("echo {night}"));
        assert_code(&machine.run(script("+%F)\" nightly")), 0, night);
        assert_eq!(machine.runs(), reports);
    }
    machine.program("date", "echo 2026-11-24");
    machine.program("report.sh", "exit 3");
    for (code, attempt) in [(3, "the code of the report"), (0, "it is not repeated")] {
        assert_code(&machine.run(script("+%F)\" nightly")), code, attempt);
    }
}

pub(crate) fn a_late_clock_finds_the_pause_after_a_job(machine: &Machine) {
    for clock in ["punctual", "late"] {
        assert_code(&machine.run(script("--at-least")), 0, clock);
        assert_eq!(machine.runs(), 1);
    }
}

pub(crate) fn a_night_that_failed_is_done_again_until_it_succeeds(machine: &Machine) {
    machine.program("date", "echo 2026-11-22");
    machine.program("report.sh", "exit 3");
    assert_code(&machine.run(script("--retry-failed")), 3, "it fails");
    machine.program("report.sh", "echo ran >> runs");
    for machine_of_the_night in 1..=2 {
        assert_code(&machine.run(script("--retry-failed")), 0, machine_of_the_night);
        assert_eq!(machine.runs(), 1);
    }
}

pub(crate) fn a_container_runs_the_report_under_the_lock(machine: &Machine) {
    let words = [words("ENTRYPOINT"), words("CMD")].concat().join(" ");
    assert_code(&machine.run(&words), 0, &words);
    assert_eq!(machine.runs(), 1);
    // The image's own command line, with the options that the guide gives to docker.
    machine.program("docker", r#"[ "$1 $6" = "run DISTLOCK_URL=redis://cache" ] && [ $# = 7 ]"#);
    assert_code(&machine.run(script("docker run")), 0, "docker");
}

pub(crate) fn a_program_runs_on_the_leader_alone(machine: &Machine) {
    machine.program("scheduler.sh", "echo ran >> runs; mkfifo pipe; read line < pipe");
    let mut leader = Running::start(&mut machine.command(script("distlock elect")));
    until("it runs", || machine.runs() == 1 && machine.0.file("pipe").exists());
    let mut candidate = Running::start(&mut machine.command(script("distlock elect")));
    machine.0.until_waiting("scheduler", 1);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(machine.0.status("scheduler")["holders"][0]["value"], host.trim());
    assert_eq!(machine.runs(), 1);
    machine.program("scheduler.sh", "echo ran >> runs");
    fs::write(machine.0.file("pipe"), "go\n").unwrap();
    assert_eq!((leader.code(), candidate.code(), machine.runs()), (0, 0, 2));
}

/// Begins, and ends when there is a file of this name.
const UNTIL_DONE: &str = "echo begun >> runs; while [ ! -e done ]; do sleep 0.1; done";

pub(crate) fn exports_run_beside_each_other_and_the_import_alone(machine: &Machine) {
    machine.program("export.sh", UNTIL_DONE);
    machine.program("import.sh", "echo ran >> imports");
    let mut exports = [0, 1].map(|_| Running::start(&mut machine.command(script("./export.sh"))));
    until("both run", || machine.runs() == 2);
    let mut import = Running::start(&mut machine.command(script("./import.sh")));
    machine.0.until_waiting("catalog", 1);
    assert!(!machine.0.file("imports").exists());
    fs::write(machine.0.file("done"), "").unwrap();
    assert_eq!((exports.each_mut().map(Running::code), import.code()), ([0; 2], 0));
    assert!(machine.0.file("imports").exists());
}

pub(crate) fn a_large_render_and_a_small_one_use_all_licences(machine: &Machine) {
    machine.program("render.sh", UNTIL_DONE);
    let [small, large] = ["-- ./render.sh", "--large"].map(script);
    assert!(!small.contains("--large"));
    let mut renders = [large, small].map(|script| Running::start(&mut machine.command(script)));
    until("both run", || machine.runs() == 2);
    let third = small.replace("--limit", "--no-wait --limit");
    assert_code(&machine.run(&third), 75, &third);
    fs::write(machine.0.file("done"), "").unwrap();
    assert_eq!(renders.each_mut().map(Running::code), [0; 2]);
}

pub(crate) fn a_unit_ends_with_the_code_that_it_counts_as_success(machine: &Machine) {
    let unit = blocks("ini")[0];
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let line = line.replace("/usr/local/bin/", "");
    assert_code(&machine.run(&line), 0, &line);
    assert_eq!(machine.runs(), 1);
    let _holder = machine.0.hold("nightly-report");
    assert!(unit.contains("\nSuccessExitStatus=75\n"));
    assert_code(&machine.run(&line), 75, &line);
}

pub(crate) fn a_recipe_of_make_runs_under_the_lock(machine: &Machine) {
    let recipe = blocks("make")[0].lines().find_map(|line| line.strip_prefix('\t')).unwrap();
    assert_code(&machine.run(recipe), 0, recipe);
    assert_eq!(machine.runs(), 1);
}
