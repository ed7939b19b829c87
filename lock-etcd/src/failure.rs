//! Failures of requests: why a request failed, what became of it, and the error that explains it to the user.

use lock_core::{ErrorKind, LockError, Operation};
use lock_entries::{Failed, Outcome};
use lock_kit::{no_answer, unreachable};
use tonic::{Code, Status};

const CHECK: &str = "check that the servers run, have a majority and can be reached";

/// What each refusal of a server begins with.
const FROM_SERVER: &str = "etcdserver: ";

/// Why a request has not succeeded.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// The server or the connection reports this.
    Told(Status),
    /// There was no answer in time.
    Silence,
    /// There is no contact with the servers, and nothing was sent.
    Unsent(LockError),
    /// The client's lease is gone, and with it everything that it kept.
    LeaseOver,
    /// What was asked for cannot be had, for this reason.
    Refused(LockError),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        if status.code() == Code::NotFound && status.message().contains("requested lease not found") {
            return Self::LeaseOver;
        }
        Self::Told(status)
    }
}

impl Failure {
    /// Whether nothing was done because the login is of no use any more.
    pub(crate) fn needs_login(&self) -> bool {
        matches!(self, Self::Told(status) if needs_login(status))
    }

    /// Whether the connection is of no use any more: it is broken or silent, its server has no leader, or its login has expired.
    pub(crate) fn ends_connection(&self) -> bool {
        match self {
            Self::Silence => true,
            Self::Told(_) => self.outcome() == Outcome::Unknown || self.needs_login(),
            Self::Unsent(_) | Self::LeaseOver | Self::Refused(_) => false,
        }
    }
}

impl Failed for Failure {
    fn outcome(&self) -> Outcome {
        match self {
            Self::LeaseOver => Outcome::EndsWithSession,
            Self::Unsent(_) => Outcome::Postponed,
            Self::Refused(_) => Outcome::Refused,
            Self::Silence => Outcome::Unknown,
            Self::Told(status) => match status.code() {
                _ if needs_login(status) => Outcome::Postponed,
                // The server's transport says this, which knows no such request.
                Code::Unimplemented => Outcome::Refused,
                // The client's transport has the same codes, for example for an answer that is too long.
                _ if !status.message().starts_with(FROM_SERVER) => Outcome::Unknown,
                Code::ResourceExhausted if status.message().contains("too many requests") => {
                    Outcome::Postponed
                }
                Code::PermissionDenied
                | Code::InvalidArgument
                | Code::ResourceExhausted
                | Code::FailedPrecondition
                | Code::NotFound
                | Code::OutOfRange => Outcome::Refused,
                _ => Outcome::Unknown,
            },
        }
    }

    fn explain(self, operation: Operation) -> LockError {
        let outcome = self.outcome();
        let new = |kind, cause: String| LockError::new(kind, operation).because(cause);
        let status = match self {
            Self::Silence => return no_answer(operation).remedy(CHECK),
            Self::Unsent(error) | Self::Refused(error) => return error.during(operation),
            Self::LeaseOver => {
                return new(ErrorKind::Unreachable, "the client's lease has ended".to_owned())
                    .remedy("the client asks for another one: try again")
                    .retryable();
            }
            Self::Told(status) => status,
        };
        let said = status.message().trim_start_matches(FROM_SERVER);
        let explained = match status.code() {
            _ if needs_login(&status) => new(ErrorKind::Denied, format!("the login has expired: {said}"))
                .remedy("the client logs in again: try again"),
            Code::PermissionDenied => new(ErrorKind::Denied, format!("the server refuses it: {said}"))
                .remedy("give the user's role readwrite on the prefix of the locks"),
            Code::InvalidArgument if is_about_login(said) => {
                new(ErrorKind::Denied, format!("the server refuses the login: {said}"))
                    .remedy("check user and password")
            }
            Code::ResourceExhausted if outcome == Outcome::Refused => {
                new(ErrorKind::Server, format!("the server has no room: {said}"))
                    .remedy("compact and defragment its store, and disarm its alarm")
            }
            Code::Unimplemented => {
                new(ErrorKind::Unsupported, "the server does not know this request".to_owned())
                    .remedy("check that an etcd server of version 3.4 or newer listens there")
            }
            Code::Unavailable | Code::Cancelled | Code::Unknown | Code::Internal | Code::DeadlineExceeded => {
                unreachable(operation, said_by_transport(&status)).remedy(CHECK)
            }
            Code::ResourceExhausted | Code::OutOfRange if outcome == Outcome::Unknown => {
                unreachable(operation, said_by_transport(&status)).remedy(CHECK)
            }
            _ => new(ErrorKind::Server, format!("the server refuses it: {said}"))
                .remedy("look at the server's log"),
        };
        if outcome == Outcome::Refused { explained } else { explained.retryable() }
    }
}

/// Whether the login is of no use any more. One of signed tokens ends with each change of users and roles, which has a code of its own.
fn needs_login(status: &Status) -> bool {
    status.code() == Code::Unauthenticated || status.message().contains("revision of auth store is old")
}

fn is_about_login(said: &str) -> bool {
    ["user name", "authentication", "password"].iter().any(|word| said.contains(word))
}

/// What the server says, or why there is no connection: the library hides that behind `transport error`.
fn said_by_transport(status: &Status) -> String {
    let mut text = status.message().trim_start_matches(FROM_SERVER).to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        text = error.to_string();
        source = error.source();
    }
    text
}

/// The error for an answer that the protocol does not provide for.
pub(crate) fn nonsense(operation: Operation, what: &str) -> LockError {
    LockError::new(ErrorKind::Server, operation)
        .because(format!("the server's reply is invalid: {what}"))
        .remedy("check that an etcd server listens there")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(code: Code, message: &str) -> Failure {
        Failure::from(Status::new(code, message))
    }

    #[test]
    fn only_what_a_server_refuses_did_nothing() {
        for (code, said) in [
            (Code::ResourceExhausted, "mvcc: database space exceeded"),
            (Code::OutOfRange, "too large lease TTL"),
            (Code::PermissionDenied, "permission denied"),
            (Code::InvalidArgument, "request is too large"),
        ] {
            let from_server = told(code, &format!("etcdserver: {said}"));
            assert_eq!(from_server.outcome(), Outcome::Refused, "{said}");
            assert!(!from_server.ends_connection(), "{said}");
            let from_transport = told(code, said);
            assert_eq!(from_transport.outcome(), Outcome::Unknown, "{said}");
            assert!(from_transport.ends_connection(), "{said}");
        }
        let calm = told(Code::ResourceExhausted, "h2 protocol error: ENHANCE_YOUR_CALM");
        assert_eq!(calm.explain(Operation::Acquire).kind(), ErrorKind::Unreachable);
        let no_etcd = told(Code::Unimplemented, "unknown service etcdserverpb.KV");
        assert_eq!(no_etcd.outcome(), Outcome::Refused);
        let busy = told(Code::ResourceExhausted, "etcdserver: too many requests");
        assert_eq!(busy.outcome(), Outcome::Postponed);
    }

    #[test]
    fn a_login_that_has_become_old_is_renewed_and_the_request_repeated() {
        for (code, said) in [
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
        ] {
            let failure = told(code, said);
            assert_eq!(failure.outcome(), Outcome::Postponed, "{said}");
            assert!(failure.ends_connection(), "{said}");
            let error = failure.explain(Operation::Release);
            assert!(error.kind() == ErrorKind::Denied && error.is_retryable(), "{error}");
        }
        // Another login would not help.
        let wrong =
            told(Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password");
        assert_eq!(wrong.outcome(), Outcome::Refused);
    }
}
