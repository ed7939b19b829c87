//! Statements that a session carries out again and again: the server parses and plans them once.
//!
//! Planning would cost it several times what the lock costs. A session prepares a statement when it needs it for the second
//! time, in the same message, so that a client that takes one lock pays nothing for it. If that message fails, it is not known
//! whether the statement is prepared, and the session goes on without it.

use lock_core::Mode;

use crate::dialect::Claim;
use crate::hold::Has;
use crate::key::Key;
use crate::options::TokenSource;
use crate::permits::{self, Gate};
use crate::session_tag::SessionTag;
use crate::statement;

/// One of these statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeated {
    Take,
    TakeShared,
    TakePermits,
    Wait,
    WaitShared,
    WaitForPermits,
    LookForPermits,
    Release,
    ReleaseShared,
    ReleasePermits,
}

const STATEMENTS: usize = 10;

/// A statement with its arguments, as SQL expressions.
#[derive(Debug)]
pub(crate) struct Call {
    statement: Repeated,
    /// With commas between them.
    arguments: String,
}

impl Call {
    /// Tries a lock.
    pub(crate) fn to_take(claim: &Claim) -> Self {
        Self::to_acquire(claim, [Repeated::Take, Repeated::TakeShared, Repeated::TakePermits])
    }

    /// Waits for a lock.
    pub(crate) fn to_wait(claim: &Claim) -> Self {
        Self::to_acquire(claim, [Repeated::Wait, Repeated::WaitShared, Repeated::WaitForPermits])
    }

    /// Looks for permits in the session that has the gate of the semaphore.
    pub(crate) fn to_look(claim: &Claim) -> Self {
        Self::to_acquire(claim, [Repeated::LookForPermits; 3])
    }

    fn to_acquire(claim: &Claim, [exclusive, shared, permits]: [Repeated; 3]) -> Self {
        let (key, sections) = (claim.key, claim.sections);
        match claim.mode {
            Mode::Permits { take, of } => {
                Self { statement: permits, arguments: format!("{key},{take},{of}") }
            }
            Mode::Shared => Self { statement: shared, arguments: format!("{key},{sections}") },
            _ => Self { statement: exclusive, arguments: format!("{key},{sections}") },
        }
    }

    /// Gives a lock back; `None` where it is not known what the session has.
    pub(crate) fn to_release(key: Key, has: &Has) -> Option<Self> {
        let (statement, arguments) = match has {
            Has::Exclusive => (Repeated::Release, key.to_string()),
            Has::Shared => (Repeated::ReleaseShared, key.to_string()),
            Has::Permits { of, numbers } => (Repeated::ReleasePermits, permits::held(key, *of, numbers)),
            Has::Either | Has::PartOfSemaphore => return None,
        };
        Some(Self { statement, arguments })
    }
}

impl Repeated {
    /// Its name, the types of its arguments, and its text with `$1`, `$2` and so on in their places.
    fn about(
        self,
        tokens: TokenSource,
        tag: SessionTag,
    ) -> (&'static str, &'static str, impl Fn() -> String) {
        const KEY: &str = "bigint";
        const ACQUIRE: &str = "bigint,integer";
        const PERMITS: &str = "bigint,integer,integer";
        let (name, parameters) = match self {
            Self::Take => ("distlock_take", ACQUIRE),
            Self::TakeShared => ("distlock_take_shared", ACQUIRE),
            Self::TakePermits => ("distlock_take_permits", PERMITS),
            Self::Wait => ("distlock_wait", ACQUIRE),
            Self::WaitShared => ("distlock_wait_shared", ACQUIRE),
            Self::WaitForPermits => ("distlock_wait_for_permits", PERMITS),
            Self::LookForPermits => ("distlock_look_for_permits", PERMITS),
            Self::Release => ("distlock_release", KEY),
            Self::ReleaseShared => ("distlock_release_shared", KEY),
            Self::ReleasePermits => ("distlock_release_permits", "bigint,integer,integer[]"),
        };
        let text = move || match self {
            Self::Take => statement::take(Mode::Exclusive, tokens, tag),
            Self::TakeShared => statement::take(Mode::Shared, tokens, tag),
            Self::TakePermits => permits::take(Gate::Try, tokens, tag),
            Self::Wait => statement::wait(Mode::Exclusive, tokens, tag),
            Self::WaitShared => statement::wait(Mode::Shared, tokens, tag),
            Self::WaitForPermits => permits::take(Gate::Wait, tokens, tag),
            Self::LookForPermits => permits::take(Gate::Passed, tokens, tag),
            Self::Release => statement::in_session(tag, &statement::unlocks("$1", &Has::Exclusive)),
            Self::ReleaseShared => statement::in_session(tag, &statement::unlocks("$1", &Has::Shared)),
            Self::ReleasePermits => statement::in_session(tag, &permits::gives_back()),
        };
        (name, parameters, text)
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
    uses: [Use; STATEMENTS],
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
        let arguments = &call.arguments;
        let (name, parameters, text) = call.statement.about(tokens, tag);
        let execute = || format!("EXECUTE {name}({arguments})");
        let message = match self.uses[call.statement as usize] {
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
        let used = &mut self.uses[call.statement as usize];
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
        Call { statement: Repeated::Release, arguments: "7".to_owned() }
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
