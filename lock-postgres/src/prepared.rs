//! Statements that a session carries out again and again: the server parses and plans them once.
//!
//! Planning would cost it several times what the lock costs. A session prepares a statement when it needs it for the second
//! time, in the same message, so that a client that takes one lock pays nothing for it. If that message fails, it is not known
//! whether the statement is prepared, and the session goes on without it.

use crate::claim::{Claim, Has, Wanted};
use crate::key::Key;
use crate::options::TokenSource;
use crate::permits::{self, Gate, Permits};
use crate::session_tag::SessionTag;
use crate::statement;

/// One of these statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeated {
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
    pub(crate) statement: Repeated,
    arguments: Vec<String>,
}

impl Call {
    /// Tries a lock; `None` where the statement depends on more than its arguments.
    pub(crate) fn to_take(claim: &Claim, tokens: TokenSource) -> Option<Self> {
        Self::to_acquire(claim, tokens, [Repeated::Take, Repeated::TakeShared, Repeated::TakePermits])
    }

    /// Waits for a lock; `None` in the same cases.
    pub(crate) fn to_wait(claim: &Claim, tokens: TokenSource) -> Option<Self> {
        Self::to_acquire(claim, tokens, [Repeated::Wait, Repeated::WaitShared, Repeated::WaitForPermits])
    }

    fn to_acquire(claim: &Claim, tokens: TokenSource, statements: [Repeated; 3]) -> Option<Self> {
        if tokens == TokenSource::Sequence && claim.sections.get() > 1 {
            return None;
        }
        let [exclusive, shared, permits] = statements;
        let on_key = |statement| Self { statement, arguments: vec![claim.key.to_string()] };
        Some(match claim.wanted {
            Wanted::Exclusive => on_key(exclusive),
            Wanted::Shared => on_key(shared),
            Wanted::Permits(wanted) => {
                Self { statement: permits, arguments: permits::arguments(claim.key, wanted) }
            }
        })
    }

    /// Looks for permits in the session that has the gate of the semaphore.
    pub(crate) fn to_look(key: Key, permits: Permits) -> Self {
        Self { statement: Repeated::LookForPermits, arguments: permits::arguments(key, permits) }
    }

    /// Gives a lock back; `None` where it is not known what the session has.
    pub(crate) fn to_release(key: Key, has: &Has) -> Option<Self> {
        let on_key = |statement| Self { statement, arguments: vec![key.to_string()] };
        Some(match has {
            Has::Exclusive => on_key(Repeated::Release),
            Has::Shared => on_key(Repeated::ReleaseShared),
            Has::Permits { of, numbers } => {
                Self { statement: Repeated::ReleasePermits, arguments: permits::held(key, *of, numbers) }
            }
            Has::Either | Has::PartOfSemaphore => return None,
        })
    }
}

/// The statement with these arguments in the places of `$1`, `$2` and so on.
pub(crate) fn filled_in(mut text: String, arguments: &[String]) -> String {
    for (argument, number) in arguments.iter().zip(1..) {
        text = text.replace(&format!("${number}"), argument);
    }
    text
}

impl Repeated {
    fn name(self) -> &'static str {
        match self {
            Self::Take => "distlock_take",
            Self::TakeShared => "distlock_take_shared",
            Self::TakePermits => "distlock_take_permits",
            Self::Wait => "distlock_wait",
            Self::WaitShared => "distlock_wait_shared",
            Self::WaitForPermits => "distlock_wait_for_permits",
            Self::LookForPermits => "distlock_look_for_permits",
            Self::Release => "distlock_release",
            Self::ReleaseShared => "distlock_release_shared",
            Self::ReleasePermits => "distlock_release_permits",
        }
    }

    /// The types of its arguments: the key, and for permits also their numbers.
    fn parameters(self) -> &'static str {
        match self {
            Self::Take
            | Self::TakeShared
            | Self::Wait
            | Self::WaitShared
            | Self::Release
            | Self::ReleaseShared => "bigint",
            Self::TakePermits | Self::WaitForPermits | Self::LookForPermits => "bigint,integer,integer",
            Self::ReleasePermits => "bigint,integer,integer[]",
        }
    }

    /// The statement, with `$1`, `$2` and so on in the places of its arguments.
    pub(crate) fn text(self, tokens: TokenSource, tag: SessionTag) -> String {
        match self {
            Self::Take => statement::take_again(Wanted::Exclusive, tokens, tag),
            Self::TakeShared => statement::take_again(Wanted::Shared, tokens, tag),
            Self::TakePermits => permits::take(Gate::Try, tokens, tag, None),
            Self::Wait => statement::wait_again(Wanted::Exclusive, tokens, tag),
            Self::WaitShared => statement::wait_again(Wanted::Shared, tokens, tag),
            Self::WaitForPermits => permits::take(Gate::Wait, tokens, tag, None),
            Self::LookForPermits => permits::take(Gate::Passed, tokens, tag, None),
            Self::Release => statement::release_again(&Has::Exclusive, tag),
            Self::ReleaseShared => statement::release_again(&Has::Shared, tag),
            Self::ReleasePermits => statement::in_session(tag, &permits::gives_back()),
        }
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
    pub(crate) fn message(&self, beginning: &str, call: &Call, text: impl FnOnce() -> String) -> String {
        let Call { statement, arguments } = call;
        let name = statement.name();
        let execute = || format!("EXECUTE {name}({})", arguments.join(","));
        let message = match self.uses[*statement as usize] {
            Use::Prepared => execute(),
            Use::Once => format!("PREPARE {name}({}) AS {};{}", statement.parameters(), text(), execute()),
            Use::Never | Use::Failed => filled_in(text(), arguments),
        };
        format!("{beginning}{message}")
    }

    /// The server has carried out the message that has the statement.
    pub(crate) fn is_answered(&mut self, repeated: Repeated) {
        let used = &mut self.uses[repeated as usize];
        *used = match *used {
            Use::Never => Use::Once,
            Use::Once | Use::Prepared => Use::Prepared,
            Use::Failed => Use::Failed,
        };
    }

    /// The message has failed.
    pub(crate) fn is_refused(&mut self, repeated: Repeated) {
        self.uses[repeated as usize] = Use::Failed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(prepared: &mut Prepared) -> String {
        let call = Call { statement: Repeated::Take, arguments: vec!["7".to_owned()] };
        prepared.message("/**/", &call, || "SELECT $1".to_owned())
    }

    #[test]
    fn the_second_use_prepares_a_statement() {
        let mut prepared = Prepared::default();
        assert!(message(&mut prepared).ends_with("*/SELECT 7"));
        prepared.is_answered(Repeated::Take);
        let second = message(&mut prepared);
        let preparation = "PREPARE distlock_take(bigint) AS SELECT $1;EXECUTE";
        assert!(second.contains(preparation) && second.ends_with("distlock_take(7)"), "{second}");
        prepared.is_answered(Repeated::Take);
        for _ in 0..2 {
            assert!(message(&mut prepared).ends_with("*/EXECUTE distlock_take(7)"));
            prepared.is_answered(Repeated::Take);
        }
    }

    #[test]
    fn a_statement_that_may_not_be_prepared_is_sent_whole() {
        let mut prepared = Prepared::default();
        message(&mut prepared);
        prepared.is_answered(Repeated::Take);
        message(&mut prepared);
        prepared.is_refused(Repeated::Take);
        for _ in 0..3 {
            assert!(message(&mut prepared).ends_with("*/SELECT 7"));
            prepared.is_answered(Repeated::Take);
        }
    }
}
