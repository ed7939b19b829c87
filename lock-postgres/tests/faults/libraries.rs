//! The client crates whose transactions take locks, for cases that run with each of them.

use std::time::Duration;

use conformance_tests::faults::case::Case;
use conformance_tests::{Failure, Outcome};
use lock_core::LockError;
use lock_postgres::in_transaction;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Postgres};

#[derive(Debug, Clone, Copy)]
pub enum Library {
    Sqlx,
    #[cfg(feature = "tokio-postgres")]
    TokioPostgres,
}

pub enum Connection {
    Sqlx(PgConnection),
    #[cfg(feature = "tokio-postgres")]
    TokioPostgres(tokio_postgres::Client),
}

pub enum Transaction<'c> {
    Sqlx(sqlx::Transaction<'c, Postgres>),
    #[cfg(feature = "tokio-postgres")]
    TokioPostgres(tokio_postgres::Transaction<'c>),
}

/// Does the same with the transaction of whichever library it is.
macro_rules! with {
    ($transaction:expr, $inner:ident => $action:expr) => {
        match $transaction {
            Transaction::Sqlx($inner) => $action,
            #[cfg(feature = "tokio-postgres")]
            Transaction::TokioPostgres($inner) => $action,
        }
    };
}
pub(crate) use with;

/// The cases, with each library.
pub fn with_each(cases: fn() -> Vec<Case<Library>>) -> Vec<Case> {
    let bound = |library: &Library| {
        let library = *library;
        cases().into_iter().map(move |case| case.on(library.name(), library))
    };
    Library::ALL.iter().flat_map(bound).collect()
}

fn failed(error: impl std::error::Error) -> Failure {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    Failure::new(format!("{error}{cause}"))
}

impl Library {
    const ALL: &[Self] = &[
        Self::Sqlx,
        #[cfg(feature = "tokio-postgres")]
        Self::TokioPostgres,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Sqlx => "sqlx",
            #[cfg(feature = "tokio-postgres")]
            Self::TokioPostgres => "tokio-postgres",
        }
    }

    /// Connects to the database that `url` names. Neither library knows the options of distlock.
    pub async fn connect(self, url: &str) -> Outcome<Connection> {
        let url = url.split('?').next().unwrap_or_default();
        Ok(match self {
            Self::Sqlx => Connection::Sqlx(PgConnection::connect(url).await.map_err(failed)?),
            #[cfg(feature = "tokio-postgres")]
            Self::TokioPostgres => {
                let (client, connection) =
                    tokio_postgres::connect(url, tokio_postgres::NoTls).await.map_err(failed)?;
                tokio::spawn(connection);
                Connection::TokioPostgres(client)
            }
        })
    }
}

impl Connection {
    pub async fn begin(&mut self) -> Outcome<Transaction<'_>> {
        Ok(match self {
            Self::Sqlx(connection) => Transaction::Sqlx(connection.begin().await.map_err(failed)?),
            #[cfg(feature = "tokio-postgres")]
            Self::TokioPostgres(client) => {
                Transaction::TokioPostgres(client.transaction().await.map_err(failed)?)
            }
        })
    }
}

impl Transaction<'_> {
    /// Waits without a limit, or for so long.
    pub async fn wait(&mut self, name: &str, limit: Option<Duration>) -> Result<bool, LockError> {
        let Some(limit) = limit else {
            return with!(self, inner => in_transaction(inner, name).acquire().await.map(|()| true));
        };
        with!(self, inner => in_transaction(inner, name).acquire_within(limit).await)
    }

    pub async fn try_acquire(&mut self, name: &str) -> Result<bool, LockError> {
        with!(self, inner => in_transaction(inner, name).try_acquire().await)
    }

    /// The errors of all ways to take a lock, one after the other.
    pub async fn refusals(&mut self, name: &str) -> Outcome<Vec<LockError>> {
        let answers = [
            self.wait(name, None).await,
            self.wait(name, Some(Duration::from_mins(1))).await,
            self.try_acquire(name).await,
        ];
        let refused = |answer: Result<bool, LockError>| match answer {
            Ok(_) => Err(Failure::new(format!("{name:?} was not refused"))),
            Err(error) => Ok(error),
        };
        answers.into_iter().map(refused).collect()
    }

    pub async fn execute(&mut self, statements: &str) -> Outcome {
        match self {
            Self::Sqlx(inner) => {
                let query = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
                query.execute(&mut **inner).await.map(drop).map_err(failed)
            }
            #[cfg(feature = "tokio-postgres")]
            Self::TokioPostgres(inner) => inner.batch_execute(statements).await.map_err(failed),
        }
    }

    /// The limit of waits that statements of the transaction have.
    pub async fn limit(&mut self) -> Outcome<String> {
        const QUESTION: &str = "SELECT current_setting('lock_timeout')";
        match self {
            Self::Sqlx(inner) => sqlx::query_scalar(QUESTION).fetch_one(&mut **inner).await.map_err(failed),
            #[cfg(feature = "tokio-postgres")]
            Self::TokioPostgres(inner) => Ok(inner.query_one(QUESTION, &[]).await.map_err(failed)?.get(0)),
        }
    }

    pub async fn commit(self) -> Outcome {
        with!(self, inner => inner.commit().await.map_err(failed))
    }

    pub async fn rollback(self) -> Outcome {
        with!(self, inner => inner.rollback().await.map_err(failed))
    }
}
