//! Failures of requests: why a request failed, what became of it, and the error that explains it to the user.

use std::error::Error as _;

use lock_core::{ErrorKind, LockError, Operation};
use lock_entries::{Failed, Outcome};
use lock_kit::no_answer;
use zookeeper_client::{Error, MultiWriteError};

/// Why a request has not succeeded.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// The server, the connection or the client library reports this error.
    Told(Error),
    /// There was no answer in time.
    Silence,
    /// There is no contact with the servers, and nothing was sent.
    Unsent(LockError),
    /// What was asked for cannot be had, for this reason.
    Refused(LockError),
}

impl Failure {
    /// Whether this is the error that the server, the connection or the client library reports.
    pub(crate) fn is(&self, error: &Error) -> bool {
        matches!(self, Self::Told(told) if told == error)
    }
}

impl Failed for Failure {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Refused(_)
            | Self::Told(
                Error::NoNode
                | Error::NodeExists
                | Error::NotEmpty
                | Error::NoAuth
                | Error::BadVersion
                | Error::InvalidAcl
                | Error::BadArguments(_)
                | Error::NoChildrenForEphemerals
                | Error::QuotaExceeded
                | Error::Unimplemented
                | Error::MarshallingError
                | Error::AuthFailed,
            ) => Outcome::Refused,
            Self::Told(Error::Throttled | Error::NotReadOnly | Error::SessionMoved) | Self::Unsent(_) => {
                Outcome::Postponed
            }
            Self::Told(Error::SessionExpired | Error::ClientClosed) => Outcome::EndsWithSession,
            Self::Told(_) | Self::Silence => Outcome::Unknown,
        }
    }

    fn explain(self, operation: Operation) -> LockError {
        let outcome = self.outcome();
        let error = match self {
            Self::Silence => return silence(operation),
            Self::Unsent(error) | Self::Refused(error) => return error.during(operation),
            Self::Told(error) => error,
        };
        let new = |kind, cause: &str| LockError::new(kind, operation).because(cause.to_owned());
        let explained = match &error {
            Error::NoAuth => new(ErrorKind::Denied, "the server refuses this to the user")
                .remedy("give the user the permissions that docs/backends/zookeeper.md lists"),
            Error::AuthFailed => new(ErrorKind::Denied, "the server refused the user or the password")
                .remedy("check user, password and the option auth"),
            Error::InvalidAcl => new(ErrorKind::Denied, "the server knows no user who could own the nodes")
                .remedy("give user and password, or leave out acl=creator"),
            Error::QuotaExceeded => new(ErrorKind::Server, "a quota of the server is used up")
                .remedy("raise the quota of the folder of the locks"),
            Error::NoChildrenForEphemerals => {
                new(ErrorKind::Server, "a folder in the path of the locks belongs to a session")
                    .remedy("choose another folder in the URL's path")
            }
            Error::Throttled => new(ErrorKind::Server, "the server is overloaded").remedy("retry later"),
            Error::NotReadOnly => new(ErrorKind::Unreachable, "the server has lost quorum and is read-only")
                .remedy("wait until the ensemble has a quorum"),
            Error::SessionExpired | Error::ClientClosed => {
                new(ErrorKind::Unreachable, "the session has ended")
                    .remedy("the client opens another one: try again")
            }
            Error::BadArguments(reason) => new(ErrorKind::InvalidOption, "the client library refuses")
                .because(format!("the client library refuses it: {reason}"))
                .remedy("check the hosts and the folder in the URL"),
            Error::Unimplemented => new(ErrorKind::Unsupported, "the server does not know this request")
                .remedy("update the server: ZooKeeper 3.6 is the oldest version that works"),
            Error::NoHosts => new(ErrorKind::Unreachable, "no server accepted a connection")
                .remedy("check that they run and can be reached"),
            Error::Timeout => new(ErrorKind::Unreachable, "no server answered in time")
                .remedy("check that they run, have a quorum and can be reached"),
            Error::ConnectionLoss => new(ErrorKind::Unreachable, "the connection has ended")
                .remedy("check that the servers run and can be reached"),
            Error::NoNode | Error::NodeExists | Error::NotEmpty | Error::BadVersion => {
                new(ErrorKind::Server, "")
                    .because(format!("another client changes the nodes: {error}"))
                    .remedy("find out who changes nodes of locks, and try again")
            }
            Error::Custom(custom) => new(ErrorKind::Unreachable, "")
                .because(format!("the connection has ended: {custom}"))
                .remedy("check that the servers run and can be reached"),
            _ => new(ErrorKind::Server, "")
                .because(format!("the reply is invalid: {error}"))
                .remedy("check that a ZooKeeper server listens there"),
        };
        let explained = match outcome {
            Outcome::Refused => explained,
            Outcome::Postponed | Outcome::Unknown | Outcome::EndsWithSession => explained.retryable(),
        };
        // The text above is complete; add the library's error only if it has a source of its own.
        if error.source().is_some() { explained.caused_by(error) } else { explained }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Told(error)
    }
}

impl From<MultiWriteError> for Failure {
    fn from(error: MultiWriteError) -> Self {
        Self::Told(error.into())
    }
}

/// What was asked of a node; none if there is no such node.
pub(crate) fn existing<T>(answered: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answered {
        Ok(answer) => Ok(Some(answer)),
        Err(failure) if failure.is(&Error::NoNode) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The failure for results that do not fit the question.
pub(crate) fn unexpected() -> Failure {
    Failure::Told(Error::UnexpectedError("an unexpected result".to_owned()))
}

fn silence(operation: Operation) -> LockError {
    no_answer(operation).remedy("check that the servers run, have a quorum and can be reached")
}

/// The error for a node in the lock's directory of which it is unknown whether it has the lock.
pub(crate) fn stranger(name: &str) -> LockError {
    LockError::new(ErrorKind::Server, Operation::Acquire)
        .because(format!(
            "{name:?} in the directory of the lock is numbered like one who holds it, and comes from a program that does not \
             share its locks"
        ))
        .remedy(
            "use a folder of your own for the locks, delete that node if no program needs it, or write accept=kazoo if all of them come \
             from kazoo",
        )
}

/// The error for an answer that the protocol does not provide for.
pub(crate) fn nonsense(operation: Operation, what: &str) -> LockError {
    LockError::new(ErrorKind::Server, operation)
        .because(format!("the server's reply is invalid: {what}"))
        .remedy("check that a ZooKeeper server listens there")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_to_have_done_nothing_is_unknown() {
        for error in [
            Error::ConnectionLoss,
            Error::Timeout,
            Error::UnexpectedError("x".to_owned()),
            Error::UnexpectedErrorCode(-120),
            Error::NoHosts,
        ] {
            assert_eq!(Failure::Told(error.clone()).outcome(), Outcome::Unknown, "{error}");
        }
        assert_eq!(Failure::Silence.outcome(), Outcome::Unknown);
        assert_eq!(Failure::Told(Error::NoNode).outcome(), Outcome::Refused);
        assert_eq!(Failure::Told(Error::Throttled).outcome(), Outcome::Postponed);
        assert_eq!(Failure::Told(Error::SessionExpired).outcome(), Outcome::EndsWithSession);
    }

    #[test]
    fn every_error_says_what_to_do_and_only_passing_ones_are_repeated() {
        for (error, part, is_retryable) in [
            (Error::NoAuth, "permissions", false),
            (Error::AuthFailed, "password", false),
            (Error::InvalidAcl, "acl=creator", false),
            (Error::QuotaExceeded, "quota", false),
            (Error::NoChildrenForEphemerals, "path", false),
            (Error::Throttled, "retry later", true),
            (Error::NotReadOnly, "quorum", true),
            (Error::SessionExpired, "session", true),
            (Error::ConnectionLoss, "reached", true),
            (Error::Timeout, "quorum", true),
            (Error::UnexpectedErrorCode(-3), "ZooKeeper", true),
        ] {
            let error = Failure::Told(error).explain(Operation::Acquire);
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(error.is_retryable(), is_retryable, "{error}");
        }
        assert!(Failure::Silence.explain(Operation::Renew).is_retryable());
    }
}
