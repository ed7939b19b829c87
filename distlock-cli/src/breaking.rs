//! `distlock break`: takes a lock away from its holder, after it has been made sure that this is meant.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use distlock::{LockClient, Participant, Reach, TakenAway};
use serde_json::json;

use crate::arguments::{Break, Common};
use crate::condition::Condition;
use crate::connection::{self, Address};
use crate::event::with_head;
use crate::exit::{self, Ending, Failure};
use crate::people;
use crate::report::write_output;

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Broken,
    NotHeld,
    HeldByAnother,
    Declined,
}

/// Shows who holds the lock, asks, and takes it away.
pub(crate) async fn run(common: &Common, arguments: &Break) -> Result<Ending, Failure> {
    let locks = Address::find(common.url.as_deref())?.open(Duration::ZERO).await?;
    let ending = run_with(&locks, common, arguments).await;
    connection::close(&locks).await;
    ending
}

async fn run_with(locks: &LockClient, common: &Common, arguments: &Break) -> Result<Ending, Failure> {
    let status = locks.status(&arguments.name).await?;
    let wanted = arguments.holder.as_deref();
    let chosen: Vec<_> =
        status.holders.iter().filter(|holder| wanted.is_none_or(|id| holder.id.as_str() == id)).collect();
    if chosen.is_empty() {
        let outcome = if status.is_held() { Outcome::HeldByAnother } else { Outcome::NotHeld };
        return tell(common, arguments, outcome, &status.holders);
    }
    let left_behind = left_behind(locks.capabilities().reach, &chosen);
    if !is_meant(arguments, &chosen, left_behind)? {
        return tell(common, arguments, Outcome::Declined, &status.holders);
    }
    let broken: Vec<_> = chosen.iter().copied().cloned().collect();
    // What is so now: a holder that is told may have ended before it is said.
    let sentence = sentence(Outcome::Broken, &arguments.name, &broken);
    let mut outcome = Outcome::NotHeld;
    for holder in &chosen {
        if take_from(locks, arguments, holder).await? == TakenAway::Yes {
            outcome = Outcome::Broken;
        }
    }
    if outcome == Outcome::Broken {
        let ending = tell_with(&sentence, common, arguments, outcome, &broken);
        if let Some(warning) = left_behind.filter(|_| !common.json && !common.quiet) {
            let _ = writeln!(io::stderr(), "distlock: {warning}");
        }
        return ending;
    }
    let now = locks.status(&arguments.name).await?;
    let outcome = if now.is_held() { Outcome::HeldByAnother } else { Outcome::NotHeld };
    tell(common, arguments, outcome, &now.holders)
}

async fn take_from(
    locks: &LockClient,
    arguments: &Break,
    holder: &Participant,
) -> Result<TakenAway, Failure> {
    let broken = locks.break_holder(&arguments.name, &holder.id).await?;
    for lock in &broken.also_lost {
        // Said even when nobody asked: other programs have lost their locks.
        let _ = writeln!(io::stderr(), "distlock: lock {lock:?} was lost with it");
    }
    Ok(broken.taken_away)
}

/// Whether the user means it: says so in advance, or when asked.
fn is_meant(arguments: &Break, holders: &[&Participant], left_behind: Option<&str>) -> Result<bool, Failure> {
    if arguments.yes {
        return Ok(true);
    }
    let who: Vec<_> = holders.iter().map(|holder| people::describe(holder, SystemTime::now())).collect();
    let who = who.join(", ");
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::new(
            exit::USAGE,
            format!(
                "cannot ask whether to take lock {:?} from {who}: no terminal (repeat it with --yes if you mean it)",
                arguments.name
            ),
        ));
    }
    let warning = left_behind.unwrap_or("the program that holds it may run on for a while");
    ask(&format!("lock {:?} is held by {who};\n{warning}.\nTake it away? [y/N] ", arguments.name))
        .map_err(|error| Failure::of_system("ask", error))
}

/// A word about processes that nobody can tell to end, because the one that started them has gone.
fn left_behind(reach: Reach, holders: &[&Participant]) -> Option<&'static str> {
    let gone = holders.iter().any(|holder| Condition::of(holder) == Some(Condition::Gone));
    (gone && reach != Reach::Network).then_some(
        "distlock itself has gone there, and the processes that it started are not told: they run on beside the next holder \
         until somebody ends them",
    )
}

fn ask(question: &str) -> io::Result<bool> {
    io::stderr().write_all(question.as_bytes())?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

fn tell(
    common: &Common,
    arguments: &Break,
    outcome: Outcome,
    holders: &[Participant],
) -> Result<Ending, Failure> {
    tell_with(&sentence(outcome, &arguments.name, holders), common, arguments, outcome, holders)
}

fn tell_with(
    sentence: &str,
    common: &Common,
    arguments: &Break,
    outcome: Outcome,
    holders: &[Participant],
) -> Result<Ending, Failure> {
    if common.json {
        let details = json!({ "holders": people::to_json(holders) });
        let object = with_head(&[("event", word_for(outcome)), ("name", &arguments.name)], details);
        write_output(&format!("{object}\n"))?;
    } else if !common.quiet {
        let _ = writeln!(io::stderr(), "distlock: {sentence}");
    }
    Ok(Ending::Code(code_for(outcome)))
}

fn word_for(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Broken => "broken",
        Outcome::NotHeld => "not_held",
        Outcome::HeldByAnother => "held_by_another",
        Outcome::Declined => "declined",
    }
}

fn sentence(outcome: Outcome, name: &str, holders: &[Participant]) -> String {
    let who = people::describe_all(holders, SystemTime::now());
    match outcome {
        Outcome::Broken => format!("took lock {name:?} from {who}"),
        Outcome::NotHeld => format!("lock {name:?} is not held; nothing to take away"),
        Outcome::HeldByAnother => {
            format!(
                "lock {name:?} is held by another now, and was left alone: {who} (look at it with: distlock status {})",
                shell_word(name)
            )
        }
        Outcome::Declined => format!("lock {name:?} was left alone"),
    }
}

/// A word that a shell reads as `text`.
fn shell_word(text: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./:@%+=,".contains(character);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", people::printable(text).replace('\'', r"'\''"))
}

fn code_for(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Broken | Outcome::NotHeld => exit::SUCCESS,
        Outcome::HeldByAnother | Outcome::Declined => exit::CONFLICT,
    }
}
