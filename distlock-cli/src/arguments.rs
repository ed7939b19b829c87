//! Parses the command line.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use distlock::capabilities::Reach;
use distlock::connection::LockUrl;
use distlock::spi::Driver;
use distlock::status::{LockKind, Mode};

use crate::exit::{self, Failure};
use crate::metrics_file::MetricsFile;
use crate::named::Named;
use crate::output_writer::To;

/// Run a command under a distributed lock, hold a lock, inspect it, or break it.
#[derive(Debug, Parser)]
#[command(name = "distlock", version, arg_required_else_help = true, after_help = overview())]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) task: Task,
}

/// What every subcommand understands.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    #[arg(
        long,
        global = true,
        value_name = "URL",
        help = url_help(),
        long_help = url_details()
    )]
    pub(crate) url: Option<String>,

    /// Refuse to run without a URL, for scripts: the default would be locks of this machine alone
    #[arg(long, global = true, env = "DISTLOCK_REQUIRE_URL", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) require_url: bool,

    /// Write events as JSON, one object per line
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Print more; twice: the library's log too
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Print only errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
}

/// The subcommand.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Run a command while holding a lock
    #[command(after_help = exec_examples())]
    Exec(Exec),
    /// Run a command while leading an election, or watch who leads
    #[command(after_help = elect_examples())]
    Elect(Elect),
    /// Hold a lock until standard input closes, or until SIGINT or SIGTERM
    #[command(after_help = HOLD_EXAMPLES)]
    Hold(Hold),
    /// Show who holds a lock and who waits for it; without a name, what you hold and wait for on this machine
    #[command(after_help = status_examples())]
    Status(Status),
    /// List the locks and semaphores that are held or waited for
    #[command(after_help = LIST_EXAMPLES)]
    List(List),
    /// Print who gets, holds no more and waits for which lock, as it happens
    #[command(after_help = WATCH_EXAMPLES)]
    Watch(Watch),
    /// Show the locks that are in use as they change, on a terminal; break one. Without a terminal: once, as plain text
    Top(Watch),
    /// Take a lock away from its holder
    #[command(after_help = BREAK_EXAMPLES)]
    Break(Break),
    /// Make the server forget that a slot of --once has run, or the pause of --at-least
    #[command(after_help = FORGET_EXAMPLES)]
    Forget(Forget),
    /// Connect as a program would, and try on a lock of its own what programs need
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor,
    /// Print a completion script for a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages into a folder
    #[command(hide = true)]
    Man {
        /// The folder
        folder: PathBuf,
    },
}

/// How long to wait for a lock, and the exit code when that was not long enough.
#[derive(Debug, Clone, Args)]
pub(crate) struct Waiting {
    /// Wait at most this long: 500ms, 30s, 5m [default: for ever]
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: get the lock at once or not at all
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Exit with this code when the lock cannot be acquired in time
    #[arg(short = 'E', long, value_name = "N", default_value_t = crate::exit::CONFLICT)]
    pub(crate) conflict_exit_code: u8,
}

impl Waiting {
    /// How long to wait; `None` for ever.
    pub(crate) fn longest(&self) -> Option<Duration> {
        if self.no_wait { Some(Duration::ZERO) } else { self.wait }
    }
}

/// How a lock is shared with others.
#[derive(Debug, Clone, Args)]
pub(crate) struct Sharing {
    /// Share the lock with other --shared holders; exclude everyone else
    #[arg(short, long)]
    shared: bool,

    /// Run beside others, at most N at a time: hold one of the N permits of the semaphore NAME
    #[arg(long, value_name = "N", value_parser = count, conflicts_with = "shared")]
    limit: Option<NonZeroU32>,

    /// Hold K of the N permits
    #[arg(long, value_name = "K", value_parser = count, requires = "limit")]
    permits: Option<NonZeroU32>,
}

impl Sharing {
    /// The mode that the user asks for.
    pub(crate) fn mode(&self) -> Result<Mode, Failure> {
        let take = self.permits.unwrap_or(NonZeroU32::MIN);
        match self.limit {
            Some(of) if take > of => Err(Failure::new(
                exit::USAGE,
                format!(
                    "{take} of {of} permits can never be had (make --permits smaller, or --limit larger)"
                ),
            )),
            Some(of) => Ok(Mode::Permits { take, of }),
            None if self.shared => Ok(Mode::Shared),
            None => Ok(Mode::Exclusive),
        }
    }
}

/// The arguments of `exec`.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// The lock's name: any text of 1 to 512 bytes
    pub(crate) name: String,

    /// The command and its arguments, run without a shell
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) sharing: Sharing,

    #[command(flatten)]
    pub(crate) waiting: Waiting,

    /// Run once for this slot, such as a date, on all machines; exit with 0 if it has run
    ///
    /// The slot is taken before the command starts: a command that fails is not repeated. The server remembers the slot.
    #[arg(long, value_name = "SLOT", conflicts_with_all = ["shared", "limit"])]
    pub(crate) once: Option<String>,

    /// How long the server remembers the slot at least
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "once", default_value = "1d")]
    pub(crate) keep: Duration,

    /// Take the slot only when the command has succeeded: one that fails, or whose machine dies, runs again for its slot
    #[arg(long, requires = "once")]
    pub(crate) retry_failed: bool,

    /// Exit with this code when the slot has run
    #[arg(long, value_name = "N", requires = "once", default_value_t = crate::exit::SUCCESS)]
    pub(crate) skipped_exit_code: u8,

    /// Keep the lock unavailable to other --at-least runs for this long, by the server's clock, even if the command ends sooner
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with_all = ["once", "shared", "limit"])]
    pub(crate) at_least: Option<Duration>,

    /// What happens to the command when the lock is lost
    #[arg(long, value_enum, default_value_t, value_name = "ACTION")]
    pub(crate) on_lost: OnLost,

    #[command(flatten)]
    pub(crate) supervision: Supervision,

    #[command(flatten)]
    pub(crate) recording: Recording,
}

/// The arguments of `elect`.
#[derive(Debug, Args)]
pub(crate) struct Elect {
    /// The election's name: any text of 1 to 512 bytes
    pub(crate) name: String,

    /// The command and its arguments, run without a shell
    #[arg(
        required_unless_present = "watch",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub(crate) command: Vec<OsString>,

    /// Publish this text as the leader's value, e.g. its address: at most 1024 bytes
    #[arg(long, value_name = "TEXT")]
    pub(crate) value: Option<String>,

    /// Do not stand for election: print the leader, and again at each change, until Ctrl-C
    #[arg(
        long,
        conflicts_with_all = [
            "command", "value", "wait", "no_wait", "conflict_exit_code", "grace", "on_death", "close", "metrics_file",
        ]
    )]
    pub(crate) watch: bool,

    #[command(flatten)]
    pub(crate) waiting: Waiting,

    #[command(flatten)]
    pub(crate) supervision: Supervision,

    #[command(flatten)]
    pub(crate) recording: Recording,
}

/// How distlock runs a command under a lock.
#[derive(Debug, Clone, Args)]
pub(crate) struct Supervision {
    /// How long the command has to end after a loss, between SIGTERM and SIGKILL [default: 10s, at most a third of the lease]
    ///
    /// If locks have a lease, distlock declares a loss early enough to send SIGKILL before the lease ends. The longer the grace,
    /// the sooner a silent server means a loss. If locks belong to a session of the servers, two thirds of it count as the lease.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) grace: Option<Duration>,

    /// What happens to the command when distlock itself is killed with SIGKILL (Linux)
    #[arg(long, value_enum, default_value_t, value_name = "ACTION")]
    pub(crate) on_death: OnDeath,

    /// Do not let the command inherit the descriptor that keeps a file lock held
    ///
    /// With the descriptor the lock lasts until the last process of the command has gone, even if distlock is killed.
    #[arg(short = 'o', long)]
    pub(crate) close: bool,
}

/// What to record of the run.
#[derive(Debug, Clone, Args)]
pub(crate) struct Recording {
    /// Write metrics to this file at the end, for node exporter's textfile collector
    #[arg(long, value_name = "FILE.prom", value_hint = clap::ValueHint::FilePath, value_parser = metrics_path)]
    pub(crate) metrics_file: Option<PathBuf>,
}

impl Task {
    /// Where JSON goes: standard output belongs to the command, if there is one.
    pub(crate) fn json_to(&self) -> To {
        match self {
            Self::Exec(_) | Self::Elect(Elect { watch: false, .. }) => To::Error,
            _ => To::Output,
        }
    }

    /// Begins to record the metrics of this run, if they are asked for.
    pub(crate) fn metrics_file(&self) -> Option<MetricsFile> {
        let (recording, name) = match self {
            Self::Exec(exec) => (&exec.recording, &exec.name),
            Self::Elect(elect) => (&elect.recording, &elect.name),
            Self::Hold(hold) => (&hold.recording, &hold.name),
            _ => return None,
        };
        recording.metrics_file.as_deref().map(|path| MetricsFile::begin(path, name))
    }
}

/// What happens to the command when the lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum OnLost {
    /// SIGTERM to its process group, and SIGKILL after the grace
    #[default]
    Terminate,
    /// It keeps running; distlock reports the loss
    Ignore,
}

/// What happens to the command when distlock is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum OnDeath {
    /// The system kills it with SIGKILL
    #[default]
    Kill,
    /// It keeps running
    Ignore,
}

/// The arguments of `hold`.
#[derive(Debug, Args)]
pub(crate) struct Hold {
    /// The lock's name: any text of 1 to 512 bytes
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) sharing: Sharing,

    #[command(flatten)]
    pub(crate) waiting: Waiting,

    #[command(flatten)]
    pub(crate) recording: Recording,
}

/// The arguments of `status`.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The lock's name; without it, all that processes of yours on this machine hold or wait for
    name: Option<String>,

    /// The semaphore of that name, which has nothing to do with the lock: see --limit of exec
    #[arg(long, requires = "name")]
    semaphore: bool,

    /// Show also whether this slot of --once has run
    #[arg(long, value_name = "SLOT", requires = "name", conflicts_with = "semaphore")]
    pub(crate) once: Option<String>,
}

/// The arguments of `forget`.
#[derive(Debug, Args)]
pub(crate) struct Forget {
    /// The lock's name
    pub(crate) name: String,

    /// The slot, as --once has it; without it, the pause of --at-least
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) slot: String,
}

/// The arguments of `list`.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only those whose names begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Only those that are held
    #[arg(long)]
    pub(crate) held: bool,

    /// Only those that have waiters
    #[arg(long)]
    pub(crate) waiting: bool,
}

/// The arguments of `watch` and `top`.
#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Only locks whose names begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Ask the server for all locks once in this time, at most ten times a second
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1s")]
    pub(crate) interval: Duration,
}

/// What is looked at or taken away.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The lock's name
    name: String,

    /// The semaphore of that name, which has nothing to do with the lock: see --limit of exec
    #[arg(long)]
    semaphore: bool,
}

impl Target {
    pub(crate) fn named(&self) -> Named<'_> {
        named(&self.name, self.semaphore)
    }
}

impl Status {
    /// What is looked at, if it is one lock or semaphore.
    pub(crate) fn named(&self) -> Option<Named<'_>> {
        self.name.as_deref().map(|name| named(name, self.semaphore))
    }
}

fn named(name: &str, is_semaphore: bool) -> Named<'_> {
    Named { name, kind: if is_semaphore { LockKind::Semaphore } else { LockKind::Lock } }
}

/// The arguments of `break`.
#[derive(Debug, Args)]
pub(crate) struct Break {
    #[command(flatten)]
    pub(crate) target: Target,

    /// Take it only from the holder with this id, from `status`; required if there are several
    #[arg(long, value_name = "ID")]
    pub(crate) holder: Option<String>,

    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// The collector reads no other files.
fn metrics_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.extension().is_some_and(|extension| extension == "prom") {
        return Ok(path);
    }
    Err("the name has to end with .prom".to_owned())
}

fn count(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| "write a number from 1 to 4294967295".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "write a number with its unit, such as 500ms, 30s, 5m or 1h30m".to_owned())
}

/// Returns the backends whose locks other processes can see. A lock in the memory of the command excludes no other process.
fn backends() -> Vec<Driver> {
    distlock::connection::drivers().into_iter().filter(|driver| driver.reach != Reach::Process).collect()
}

/// Returns the usual URL of each backend that needs a server.
fn servers() -> impl Iterator<Item = &'static str> {
    let servers = backends().into_iter().filter(|driver| driver.reach == Reach::Network);
    servers.filter_map(|driver| driver.examples.first().copied())
}

fn url_help() -> String {
    let urls: Vec<_> = backends().iter().filter_map(|driver| driver.examples.first().copied()).collect();
    format!(
        "Where the lock lives, such as {} [env: DISTLOCK_URL] [default: file: in a folder of yours]",
        urls.join(" or ")
    )
}

fn url_details() -> String {
    let line = |driver: &Driver| format!("\n  {:<23} {}", driver.schemes.join(", "), driver.summary);
    let lines: Vec<_> = backends().iter().map(line).collect();
    format!("{}\n\n{URL_DETAILS}\n\nThe backends, by their schemes:{}", url_help(), lines.concat())
}

const URL_DETAILS: &str = "\
Default: processes of the same user on this machine. Put a URL with a password into the environment: every user of the \
machine can read the arguments of a process.";

fn overview() -> String {
    let line = |url| format!("  distlock exec --url {url} nightly-report -- ./report.sh\n");
    let servers = servers().map(line).collect::<Vec<_>>().concat();
    format!(
        "\
Examples:
  distlock exec nightly-report -- ./report.sh
  distlock exec --url file:/srv/locks --wait 5m nightly-report -- ./report.sh
{servers}  distlock elect scheduler -- ./scheduler
  distlock status nightly-report

Exit codes:
  the command's own; 128 + signal when a signal ended it; 75 lock not acquired in time; 76 lock lost;
  69 backend unreachable; 77 access refused; 64 bad usage; 126/127 command not runnable/not found; 70 anything else",
    )
}

fn exec_examples() -> String {
    let urls: String = backends()
        .iter()
        .filter(|driver| driver.reach == Reach::Network)
        .flat_map(|driver| driver.examples)
        .map(|url| exec_example(url))
        .collect();
    format!(
        "\
Examples:
  distlock exec nightly-report -- ./report.sh
  distlock exec --no-wait backup -- rsync -a /srv/ backup:/srv/
  distlock exec --wait 30s --grace 2s deploy -- sh -c 'make && make install'
  distlock exec --once $(date -u +%F) nightly-report -- ./report.sh
  distlock exec --shared catalog -- ./export.sh       (beside other readers of the catalog)
  distlock exec catalog -- ./import.sh                (alone: neither readers nor another writer)
  distlock exec --limit 3 render -- ./render.sh       (at most three at a time)
  distlock exec --limit 3 --permits 2 render -- ./render.sh --large
{urls}
The command finds the lock's name in DISTLOCK_NAME and the fencing token in DISTLOCK_TOKEN.",
    )
}

/// A URL that may contain a secret belongs in the environment.
fn exec_example(url: &str) -> String {
    if LockUrl::parse(url).is_ok_and(|url| url.has_secret()) {
        format!("  DISTLOCK_URL='{url}' distlock exec job -- ./job.sh\n")
    } else {
        format!("  distlock exec --url '{url}' job -- ./job.sh\n")
    }
}

fn elect_examples() -> String {
    let line = |url| format!("  distlock elect --url {url} --value 10.0.0.7:8080 scheduler -- ./scheduler\n");
    let server = servers().next().map(line).unwrap_or_default();
    format!(
        "\
Examples:
  distlock elect scheduler -- ./scheduler
{server}  distlock elect --watch scheduler
  distlock elect --watch --json scheduler | jq --unbuffered .leader.value

The command finds the election's name in DISTLOCK_NAME and the term in DISTLOCK_TOKEN. After a loss it is ended, and \
distlock stands for election again; when it ends by itself, distlock resigns and ends with its exit code.",
    )
}

const HOLD_EXAMPLES: &str = "\
Examples:
  distlock hold maintenance                  (until Ctrl-D or Ctrl-C)
  distlock hold --shared catalog             (beside others who share it)
  distlock hold --json maintenance           (one JSON object a line on standard output)";

fn status_examples() -> String {
    let line = |url| format!("  distlock status --url {url} nightly-report\n");
    let server = servers().next().map(line).unwrap_or_default();
    format!(
        "\
Examples:
  distlock status nightly-report
{server}  distlock status --json nightly-report | jq .held
  distlock status --semaphore render         (who runs with `exec --limit`)",
    )
}

const LIST_EXAMPLES: &str = "\
Examples:
  distlock list
  distlock list orders/ --waiting            (where work piles up)
  distlock list --json | jq -r .name";

const WATCH_EXAMPLES: &str = "\
Examples:
  distlock watch
  distlock watch orders/ --interval 5s
  distlock watch --json | jq -r 'select(.event == \"ended\") | .name'

What begins and ends between two looks is not seen.";

const BREAK_EXAMPLES: &str = "\
Examples:
  distlock break nightly-report              (shows the holder and asks)
  distlock break --yes nightly-report        (from any holder, without asking)
  distlock break --yes --holder ID nightly-report
  distlock break --semaphore --holder ID render

The program that held the lock may keep running for a while. Only a fencing token keeps out what it still writes.";

const FORGET_EXAMPLES: &str = "\
Examples:
  distlock forget nightly-report 2026-11-22  (so that --once 2026-11-22 runs again)
  distlock forget nightly-report             (ends the pause of --at-least)";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  DISTLOCK_URL=… distlock doctor             (as a service connects)
  distlock doctor --quiet                    (only warnings and faults)
  distlock doctor --json | jq .message

Exit codes: 0 all is fine; 1 warnings; otherwise that of the first fault.";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  distlock completions bash > /etc/bash_completion.d/distlock
  distlock completions zsh > ~/.zfunc/_distlock
  distlock completions fish > ~/.config/fish/completions/distlock.fish";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_follows_the_name_belongs_to_the_command() {
        for line in [
            ["distlock", "exec", "job", "--", "echo", "-v", "--url"].as_slice(),
            ["distlock", "exec", "job", "echo", "-v", "--url"].as_slice(),
        ] {
            let arguments = Arguments::try_parse_from(line).unwrap();
            let Task::Exec(exec) = arguments.task else { panic!("not exec") };
            assert_eq!(exec.command, ["echo", "-v", "--url"]);
            assert_eq!(arguments.common.verbose, 0);
        }
    }

    #[test]
    fn an_election_is_campaigned_in_or_watched() {
        for line in [["elect", "--watch", "job"].as_slice(), &["elect", "job", "--watch"]] {
            let arguments = Arguments::try_parse_from([["distlock"].as_slice(), line].concat()).unwrap();
            assert!(matches!(arguments.task, Task::Elect(Elect { watch: true, .. })), "{line:?}");
        }
        for line in [
            ["elect", "job"].as_slice(),
            &["elect", "--watch", "job", "--", "true"],
            &["elect", "--watch", "--value", "a", "job"],
            &["elect", "--watch", "--no-wait", "job"],
            &["elect", "--on-lost", "ignore", "job", "--", "true"],
        ] {
            assert!(Arguments::try_parse_from([["distlock"].as_slice(), line].concat()).is_err(), "{line:?}");
        }
    }

    #[test]
    fn the_help_has_an_example_of_every_kind_of_url() {
        let mut command = Arguments::command();
        command.build();
        let exec = command.find_subcommand_mut("exec").unwrap().render_long_help().to_string();
        for help in [command.render_long_help().to_string(), exec] {
            for driver in distlock::connection::drivers() {
                let is_shown = help.contains(&format!("{}:", driver.schemes[0]));
                assert_eq!(is_shown, driver.reach != Reach::Process, "{}: {help}", driver.name);
            }
        }
    }

    #[test]
    fn the_options_decide_the_mode() {
        let mode_of = |options: &[&str]| {
            let line = [["distlock", "exec"].as_slice(), options, &["job", "--", "true"]].concat();
            let Task::Exec(exec) = Arguments::try_parse_from(line).ok()?.task else { return None };
            exec.sharing.mode().ok()
        };
        let permits = |take, of| {
            let (take, of) = (NonZeroU32::new(take).unwrap(), NonZeroU32::new(of).unwrap());
            Some(Mode::Permits { take, of })
        };
        for (options, mode) in [
            ([].as_slice(), Some(Mode::Exclusive)),
            (&["--shared"], Some(Mode::Shared)),
            (&["-s"], Some(Mode::Shared)),
            (&["--limit", "3"], permits(1, 3)),
            (&["--limit", "3", "--permits", "3"], permits(3, 3)),
            (&["--limit", "3", "--permits", "4"], None),
            (&["--limit", "0"], None),
            (&["--limit", "3", "--permits", "0"], None),
            (&["--permits", "1"], None),
            (&["--shared", "--limit", "3"], None),
            (&["--shared", "--once", "monday"], None),
            (&["--limit", "3", "--once", "monday"], None),
            (&["--shared", "--at-least", "1m"], None),
            (&["--limit", "3", "--at-least", "1m"], None),
        ] {
            assert_eq!(mode_of(options), mode, "{options:?}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for bad in ["30", "-1s", "", "soon"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }
}
