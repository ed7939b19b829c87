//! Statements that a session carries out again and again: the server parses and plans them once.
//!
//! Planning would cost it several times what the lock costs. A session prepares a statement when it needs it for the second
//! time, in the same message, so that a client that takes one lock pays nothing for it. If that message fails, it is not known
//! whether the statement is prepared, and the session goes on without it.

use std::collections::HashMap;

use lock_core::Mode;

use crate::dialect::Claim;
use crate::hold::Has;
use crate::key::Key;
use crate::options::TokenSource;
use crate::permits::{self, Gate};
use crate::session_tag::SessionTag;
use crate::statement;

/// The types of the arguments of a request for a lock, and of one for permits.
const LOCK: &str = "bigint,integer";
const PERMITS: &str = "bigint,integer,integer";

/// One of these statements with its arguments, as SQL expressions.
pub(crate) struct Call {
    name: &'static str,
    /// The types of its arguments.
    parameters: &'static str,
    /// With commas between them.
    arguments: String,
    /// Its text, with `$1`, `$2` and so on in their places.
    text: fn(TokenSource, SessionTag) -> String,
}

impl Call {
    /// Tries a lock.
    pub(crate) fn to_take(claim: &Claim) -> Self {
        let (name, text): (_, fn(_, _) -> _) = match claim.mode {
            Mode::Permits { .. } => ("distlock_take_permits", |of, tag| permits::take(Gate::Try, of, tag)),
            Mode::Shared => ("distlock_take_shared", |of, tag| statement::take(Mode::Shared, of, tag)),
            _ => ("distlock_take", |of, tag| statement::take(Mode::Exclusive, of, tag)),
        };
        Self::to_acquire(name, claim, text)
    }

    /// Waits for a lock.
    pub(crate) fn to_wait(claim: &Claim) -> Self {
        let (name, text): (_, fn(_, _) -> _) = match claim.mode {
            Mode::Permits { .. } => {
                ("distlock_wait_for_permits", |of, tag| permits::take(Gate::Wait, of, tag))
            }
            Mode::Shared => ("distlock_wait_shared", |of, tag| statement::wait(Mode::Shared, of, tag)),
            _ => ("distlock_wait", |of, tag| statement::wait(Mode::Exclusive, of, tag)),
        };
        Self::to_acquire(name, claim, text)
    }

    /// Looks for permits in the session that has the gate of the semaphore.
    pub(crate) fn to_look(claim: &Claim) -> Self {
        Self::to_acquire("distlock_look_for_permits", claim, |of, tag| permits::take(Gate::Passed, of, tag))
    }

    fn to_acquire(name: &'static str, claim: &Claim, text: fn(TokenSource, SessionTag) -> String) -> Self {
        let (key, sections) = (claim.key, claim.sections);
        let (parameters, arguments) = match claim.mode {
            Mode::Permits { take, of } => (PERMITS, format!("{key},{take},{of}")),
            _ => (LOCK, format!("{key},{sections}")),
        };
        Self { name, parameters, arguments, text }
    }

    /// Gives a lock back; `None` where it is not known what the session has.
    pub(crate) fn to_release(key: Key, has: &Has) -> Option<Self> {
        let one = || key.to_string();
        let (name, parameters, arguments, text): (_, _, _, fn(_, _) -> _) = match has {
            Has::Exclusive => {
                ("distlock_release", "bigint", one(), |_, tag| statement::release(Mode::Exclusive, tag))
            }
            Has::Shared => {
                ("distlock_release_shared", "bigint", one(), |_, tag| statement::release(Mode::Shared, tag))
            }
            Has::Permits { of, numbers } => {
                let held = permits::held(key, *of, numbers);
                ("distlock_release_permits", "bigint,integer,integer[]", held, permits::give_back)
            }
            Has::Unclear => return None,
        };
        Some(Self { name, parameters, arguments, text })
    }
}

/// How often a session has used a statement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Use {
    #[default]
    Never,
    Once,
    Prepared,
    /// It has failed: it is not known whether it is prepared.
    Failed,
}

/// What one session has prepared.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    uses: HashMap<&'static str, Use>,
}

impl Prepared {
    /// The message that carries the statement out, after its beginning.
    pub(crate) fn message(
        &self,
        beginning: &str,
        call: &Call,
        tokens: TokenSource,
        tag: SessionTag,
    ) -> String {
        let Call { name, parameters, arguments, text } = call;
        let text = || text(tokens, tag);
        let execute = || format!("EXECUTE {name}({arguments})");
        let message = match self.uses.get(name).copied().unwrap_or_default() {
            Use::Prepared => execute(),
            Use::Once => format!("PREPARE {name}({parameters}) AS {};{}", text(), execute()),
            Use::Never | Use::Failed => {
                let arguments = arguments.splitn(parameters.split(',').count(), ',').zip(1..);
                arguments
                    .fold(text(), |text, (argument, number)| text.replace(&format!("${number}"), argument))
            }
        };
        format!("{beginning}{message}")
    }

    /// Notes whether the server has carried out the message that has the statement.
    pub(crate) fn is_answered(&mut self, call: &Call, is_done: bool) {
        let used = self.uses.entry(call.name).or_default();
        *used = match *used {
            _ if !is_done => Use::Failed,
            Use::Never => Use::Once,
            Use::Once | Use::Prepared => Use::Prepared,
            Use::Failed => Use::Failed,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Call {
        Call::to_release(Key::of_number(7), &Has::Exclusive).unwrap()
    }

    fn message(prepared: &Prepared) -> String {
        prepared.message("/**/", &call(), TokenSource::Clock, SessionTag::new(7))
    }

    #[test]
    fn the_second_use_prepares_a_statement() {
        let mut prepared = Prepared::default();
        assert!(message(&prepared).contains("pg_advisory_unlock(7)"));
        prepared.is_answered(&call(), true);
        let second = message(&prepared);
        let preparation = "PREPARE distlock_release(bigint) AS SELECT";
        assert!(second.contains(preparation) && second.ends_with(";EXECUTE distlock_release(7)"), "{second}");
        prepared.is_answered(&call(), true);
        for _ in 0..2 {
            assert_eq!(message(&prepared), "/**/EXECUTE distlock_release(7)");
            prepared.is_answered(&call(), true);
        }
    }

    #[test]
    fn a_statement_that_may_not_be_prepared_is_sent_whole() {
        let mut prepared = Prepared::default();
        prepared.is_answered(&call(), true);
        prepared.is_answered(&call(), false);
        for _ in 0..3 {
            assert!(message(&prepared).contains("pg_advisory_unlock(7)"));
            prepared.is_answered(&call(), true);
        }
    }
}
