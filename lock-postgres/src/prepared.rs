//! Statements that a session carries out again and again: the server parses and plans them once.
//!
//! Planning would cost it several times what the lock costs. A session prepares a statement when it needs it for the second
//! time, in the same message, so that a client that takes one lock pays nothing for it. If that message fails, it is not known
//! whether the statement is prepared, and the session goes on without it.

use crate::key::Key;
use crate::link::{Claim, Has, Wanted};
use crate::options::TokenSource;
use crate::session_tag::SessionTag;
use crate::statement::{self, NameHolder};

/// One of these statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeated {
    Take,
    TakeShared,
    Wait,
    WaitShared,
    Release,
    ReleaseShared,
}

impl Repeated {
    /// What tries a lock; `None` for permits, and where the statement depends on more than the key.
    pub(crate) fn to_take(claim: &Claim, tokens: TokenSource) -> Option<Self> {
        Self::to_acquire(claim, tokens, [Self::Take, Self::TakeShared])
    }

    /// What waits for a lock; `None` in the same cases.
    pub(crate) fn to_wait(claim: &Claim, tokens: TokenSource) -> Option<Self> {
        Self::to_acquire(claim, tokens, [Self::Wait, Self::WaitShared])
    }

    fn to_acquire(claim: &Claim, tokens: TokenSource, [exclusive, shared]: [Self; 2]) -> Option<Self> {
        match claim.wanted {
            _ if tokens == TokenSource::Sequence && claim.sections.get() > 1 => None,
            Wanted::Exclusive => Some(exclusive),
            Wanted::Shared => Some(shared),
            Wanted::Permits(_) => None,
        }
    }

    /// What gives a lock back; `None` for permits, and where it is not known what the session has.
    pub(crate) fn to_release(has: &Has) -> Option<Self> {
        match has {
            Has::Exclusive => Some(Self::Release),
            Has::Shared => Some(Self::ReleaseShared),
            Has::Either | Has::Permits { .. } | Has::PartOfSemaphore => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Take => "distlock_take",
            Self::TakeShared => "distlock_take_shared",
            Self::Wait => "distlock_wait",
            Self::WaitShared => "distlock_wait_shared",
            Self::Release => "distlock_release",
            Self::ReleaseShared => "distlock_release_shared",
        }
    }

    /// The types of its arguments: the key, and where a lock may be refused, whether that says who holds it.
    fn parameters(self) -> &'static str {
        match self {
            Self::Take | Self::TakeShared => "bigint,boolean",
            Self::Wait | Self::WaitShared | Self::Release | Self::ReleaseShared => "bigint",
        }
    }

    /// The statement, with `$1` and `$2` in the place of its arguments.
    pub(crate) fn text(self, tokens: TokenSource, tag: SessionTag) -> String {
        match self {
            Self::Take => statement::take_again(Wanted::Exclusive, tokens, tag),
            Self::TakeShared => statement::take_again(Wanted::Shared, tokens, tag),
            Self::Wait => statement::wait_again(Wanted::Exclusive, tokens, tag),
            Self::WaitShared => statement::wait_again(Wanted::Shared, tokens, tag),
            Self::Release => statement::release_again(&Has::Exclusive, tag),
            Self::ReleaseShared => statement::release_again(&Has::Shared, tag),
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
    uses: [Use; 6],
}

impl Prepared {
    /// The message that carries the statement out, after its beginning. `name_holder` is for those that try a lock.
    pub(crate) fn message(
        &self,
        beginning: &str,
        repeated: Repeated,
        (key, name_holder): (Key, Option<NameHolder>),
        text: impl FnOnce() -> String,
    ) -> String {
        let name = repeated.name();
        let (key, name_holder) = (key.to_string(), name_holder.map(NameHolder::literal));
        let arguments = name_holder.map_or_else(|| key.clone(), |name_holder| format!("{key},{name_holder}"));
        let message = match self.uses[repeated as usize] {
            Use::Prepared => format!("EXECUTE {name}({arguments})"),
            Use::Once => {
                let prepare = format!("PREPARE {name}({}) AS {}", repeated.parameters(), text());
                format!("{prepare};EXECUTE {name}({arguments})")
            }
            Use::Never | Use::Failed => {
                text().replace("$1", &key).replace("$2", name_holder.unwrap_or_default())
            }
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

    const ARGUMENTS: (Option<NameHolder>, &str) = (Some(NameHolder::Yes), "distlock_take(7,true)");

    fn message(prepared: &mut Prepared) -> String {
        let arguments = (Key::of_number(7), ARGUMENTS.0);
        prepared.message("/**/", Repeated::Take, arguments, || "SELECT $1,$2".to_owned())
    }

    #[test]
    fn the_second_use_prepares_a_statement() {
        let mut prepared = Prepared::default();
        assert!(message(&mut prepared).ends_with("*/SELECT 7,true"));
        prepared.is_answered(Repeated::Take);
        let second = message(&mut prepared);
        let preparation = "PREPARE distlock_take(bigint,boolean) AS SELECT $1,$2;EXECUTE";
        assert!(second.contains(preparation) && second.ends_with(ARGUMENTS.1), "{second}");
        prepared.is_answered(Repeated::Take);
        for _ in 0..2 {
            assert!(message(&mut prepared).ends_with("*/EXECUTE distlock_take(7,true)"));
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
            assert!(message(&mut prepared).ends_with("*/SELECT 7,true"));
            prepared.is_answered(Repeated::Take);
        }
    }
}
