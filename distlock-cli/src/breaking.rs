//! `distlock break`: takes a lock away from its holder, after the user has confirmed it.

use std::io::{self, BufRead, IsTerminal, Write};
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use distlock::capabilities::{Breaking, Capabilities, Reach};
use distlock::status::{Broken, LockKind, LockStatus, Mode, Participant};
use distlock::{LockClient, LockError, LockName};
use serde_json::{Value, json};

use crate::arguments::{Break, Common};
use crate::condition::Condition;
use crate::connection::{self, Address};
use crate::event::with_head;
use crate::exit::{self, Ending, Failure};
use crate::named::{Named, is_in_use};
use crate::participants;
use crate::report::write_output;

/// The result of a break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Broken,
    NotHeld,
    HeldByAnother,
    /// There are several holders, and the user has to choose.
    SeveralHolders,
    Declined,
}

/// Shows the holders, asks the user, and takes the lock away.
pub(crate) async fn run(common: &Common, arguments: &Break) -> Result<Ending, Failure> {
    let locks = Address::find(common)?.open(Duration::ZERO).await?;
    let ending = run_with(&locks, common, arguments).await;
    connection::close(&locks).await;
    ending
}

async fn run_with(locks: &LockClient, common: &Common, arguments: &Break) -> Result<Ending, Failure> {
    let named = arguments.target.named();
    let status = named.status(locks).await?;
    let wanted = arguments.holder.as_deref();
    let chosen: Vec<_> =
        status.holders.iter().filter(|holder| wanted.is_none_or(|id| holder.id.as_str() == id)).collect();
    let Some(first) = chosen.first() else { return tell_none(locks, common, arguments, &status).await };
    if wanted.is_none() && chosen.len() > 1 {
        return tell(common, arguments, Outcome::SeveralHolders, &status.holders);
    }
    let warning = Warning::about(locks.capabilities(), &chosen);
    if !is_meant(arguments, &chosen, warning)? {
        return tell(common, arguments, Outcome::Declined, &status.holders);
    }
    let from: Vec<_> = chosen.iter().copied().cloned().collect();
    // Describes the holder now: by the time the break is reported, its process may have ended.
    let sentence = sentence(Outcome::Broken, named, &from);
    let broken = named.break_holder(locks, &first.id).await?;
    if broken.taken_away {
        return tell_broken(common, arguments, &sentence, &from, &broken, warning);
    }
    tell_none(locks, common, arguments, &named.status(locks).await?).await
}

/// Reports that there is nothing to take away: no client holds it, or another one than was named.
async fn tell_none(
    locks: &LockClient,
    common: &Common,
    arguments: &Break,
    status: &LockStatus,
) -> Result<Ending, Failure> {
    if status.is_held() {
        return tell(common, arguments, Outcome::HeldByAnother, &status.holders);
    }
    let named = arguments.target.named();
    if !common.json
        && !common.quiet
        && !is_in_use(status)
        && let Some(hint) = named.hint(locks).await
    {
        let _ = writeln!(io::stderr(), "distlock: {} ({hint})", sentence(Outcome::NotHeld, named, &[]));
        return Ok(Ending::Code(code_for(Outcome::NotHeld)));
    }
    tell(common, arguments, Outcome::NotHeld, &[])
}

/// The names of the other locks that the break has cost, or `null` if they are incomplete.
fn cost(broken: &Broken) -> Value {
    broken.also_lost.as_ref().map_or(Value::Null, |names| names.iter().map(LockName::as_str).collect())
}

/// What the user should know about this lock before breaking it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Warning {
    /// The holder has ended, so it cannot stop the processes that it started.
    LeftBehind,
    /// The server can only close the connection, with every lock on it.
    EndsConnection,
}

impl Warning {
    fn about(capabilities: &Capabilities, holders: &[&Participant]) -> Option<Self> {
        let gone = holders.iter().any(|holder| Condition::of(holder) == Some(Condition::Gone));
        if gone && capabilities.reach != Reach::Network {
            return Some(Self::LeftBehind);
        }
        (capabilities.breaking == Breaking::Sessions).then_some(Self::EndsConnection)
    }

    fn text(self) -> &'static str {
        match self {
            Self::LeftBehind => LEFT_BEHIND,
            Self::EndsConnection => {
                "its connection to the server is ended, with every other lock on it, and the program may keep running for a while"
            }
        }
    }
}

const UNKNOWN_COST: &str = "its connection was ended: all other locks on it are lost as well, and the server does not \
                            know their names";

const LEFT_BEHIND: &str = "distlock itself has ended there, and cannot stop the processes that it started: they run on beside \
                           the next holder until a user ends them";

/// Whether the user confirms the break, in advance or when asked.
fn is_meant(arguments: &Break, holders: &[&Participant], warning: Option<Warning>) -> Result<bool, Failure> {
    if arguments.yes {
        return Ok(true);
    }
    let who: Vec<_> =
        holders.iter().map(|holder| participants::describe(holder, SystemTime::now())).collect();
    let who = who.join(", ");
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::new(
            exit::USAGE,
            format!(
                "cannot ask whether to take {} from {who}: no terminal (repeat it with --yes if you mean it)",
                arguments.target.named()
            ),
        ));
    }
    ask(&question_with(arguments.target.named(), &who, warning))
        .map_err(|error| Failure::of_system("ask", error))
}

/// What the user is asked before a break, and should know.
pub(crate) fn question(capabilities: &Capabilities, named: Named<'_>, holder: &Participant) -> String {
    let who = participants::describe(holder, SystemTime::now());
    question_with(named, &who, Warning::about(capabilities, &[holder]))
}

fn question_with(named: Named<'_>, who: &str, warning: Option<Warning>) -> String {
    let warning = warning.map_or("the program that holds it may keep running for a while", Warning::text);
    format!("{named} is held by {who};\n{warning}.\nTake it away? [y/N] ")
}

/// Takes a lock away from its holder, and returns what that has done and cost, in a line.
pub(crate) async fn take(
    locks: &LockClient,
    named: Named<'_>,
    holder: &Participant,
) -> Result<String, LockError> {
    let done = sentence(Outcome::Broken, named, std::slice::from_ref(holder));
    let broken = named.break_holder(locks, &holder.id).await?;
    if !broken.taken_away {
        return Ok(sentence(Outcome::NotHeld, named, &[]));
    }
    Ok([done].into_iter().chain(costs(&broken)).collect::<Vec<_>>().join("; "))
}

/// What a break has cost beside the lock, for people.
fn costs(broken: &Broken) -> Vec<String> {
    match &broken.also_lost {
        Some(names) => {
            names.iter().map(|lock| format!("lock {:?} was lost with it", lock.as_str())).collect()
        }
        None => vec![UNKNOWN_COST.to_owned()],
    }
}

fn ask(question: &str) -> io::Result<bool> {
    io::stderr().write_all(question.as_bytes())?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Reports that the lock was taken away, and what that has cost.
fn tell_broken(
    common: &Common,
    arguments: &Break,
    sentence: &str,
    holders: &[Participant],
    broken: &Broken,
    warning: Option<Warning>,
) -> Result<Ending, Failure> {
    if common.json {
        let details = json!({ "holders": participants::to_json(holders), "also_lost": cost(broken) });
        return tell_json(arguments, Outcome::Broken, details);
    }
    let mut lines = Vec::new();
    if !common.quiet {
        lines.push(sentence.to_owned());
    }
    // Reported even with `--quiet`: other programs have lost their locks.
    if broken.also_lost.is_some() || !common.quiet {
        lines.extend(costs(broken));
    }
    if warning == Some(Warning::LeftBehind) && !common.quiet {
        lines.push(LEFT_BEHIND.to_owned());
    }
    for line in lines {
        let _ = writeln!(io::stderr(), "distlock: {line}");
    }
    Ok(Ending::Code(code_for(Outcome::Broken)))
}

fn tell(
    common: &Common,
    arguments: &Break,
    outcome: Outcome,
    holders: &[Participant],
) -> Result<Ending, Failure> {
    if common.json {
        return tell_json(arguments, outcome, json!({ "holders": participants::to_json(holders) }));
    }
    if !common.quiet || outcome == Outcome::SeveralHolders {
        let _ = writeln!(io::stderr(), "distlock: {}", sentence(outcome, arguments.target.named(), holders));
    }
    Ok(Ending::Code(code_for(outcome)))
}

fn tell_json(arguments: &Break, outcome: Outcome, details: Value) -> Result<Ending, Failure> {
    let object = with_head(&[("event", word_for(outcome)), ("name", arguments.target.named().name)], details);
    write_output(&format!("{object}\n"))?;
    Ok(Ending::Code(code_for(outcome)))
}

fn word_for(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Broken => "broken",
        Outcome::NotHeld => "not_held",
        Outcome::HeldByAnother => "held_by_another",
        Outcome::SeveralHolders => "several_holders",
        Outcome::Declined => "declined",
    }
}

fn sentence(outcome: Outcome, named: Named<'_>, holders: &[Participant]) -> String {
    let now = SystemTime::now();
    let who = participants::describe_all(holders, now);
    match outcome {
        Outcome::Broken => format!("took {}{named} from {who}", part_taken(holders)),
        Outcome::NotHeld => format!("{named} is not held; nothing to take away"),
        Outcome::HeldByAnother => {
            let option = if named.kind == LockKind::Semaphore { "--semaphore " } else { "" };
            format!(
                "{named} is held by another now, and was left alone: {who} (look at it with: distlock status {option}{})",
                shell_word(named.name)
            )
        }
        Outcome::SeveralHolders => {
            let holder = |holder: &Participant| {
                let id = participants::printable(holder.id.as_str());
                format!("\n  --holder {}  {}", shell_word(&id), participants::describe(holder, now))
            };
            let holders: String = holders.iter().map(holder).collect();
            format!("{named} has several holders; choose one of them:{holders}")
        }
        Outcome::Declined => format!("{named} was left alone"),
    }
}

/// What was taken of a lock or a semaphore that several may hold.
fn part_taken(holders: &[Participant]) -> String {
    match holders.first().map(|holder| holder.mode) {
        Some(Mode::Shared) => "a share of ".to_owned(),
        Some(Mode::Permits { take: NonZeroU32::MIN, .. }) => "1 permit of ".to_owned(),
        Some(Mode::Permits { take, .. }) => format!("{take} permits of "),
        _ => String::new(),
    }
}

/// Quotes `text` as one word for a shell.
fn shell_word(text: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./:@%+=,".contains(character);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", participants::printable(text).replace('\'', r"'\''"))
}

fn code_for(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Broken | Outcome::NotHeld => exit::SUCCESS,
        Outcome::HeldByAnother | Outcome::Declined => exit::CONFLICT,
        Outcome::SeveralHolders => exit::USAGE,
    }
}
