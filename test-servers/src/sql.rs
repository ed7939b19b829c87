//! What the fixtures of the SQL databases have in common.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Operation;

use crate::proxy::{Request, Subject};
use crate::{Failure, Outcome, ServerProcess};

const ANSWERS_WITHIN: Duration = Duration::from_mins(1);

/// Returns which operation a statement is for, by its text.
pub type OperationOf = dyn Fn(&str) -> Option<Operation> + Send + Sync;

/// One row: a text for each column, `None` for NULL.
pub type Row = Vec<Option<String>>;

/// A user of a server.
#[derive(Debug, Clone)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) password: String,
    pub(crate) grants: Vec<String>,
}

impl User {
    pub(crate) fn new(name: &str, password: &str, grants: &[&str]) -> Self {
        let grants = grants.iter().map(|&grant| grant.to_owned()).collect();
        Self { name: name.to_owned(), password: password.to_owned(), grants }
    }
}

/// Returns the users of a server that is to have these, the first of which is in its URL: one without any privileges
/// unless there are others.
pub(crate) fn at_least_one(users: &[User]) -> Vec<User> {
    if users.is_empty() { vec![User::new("locks", "secret", &[])] } else { users.to_vec() }
}

/// The statements of a connection, and which of them have been answered.
pub(crate) struct Statements {
    operation_of: Arc<OperationOf>,
    asked: u64,
    /// The numbers of those that have not been answered yet, the oldest first.
    open: VecDeque<u64>,
}

impl Statements {
    pub(crate) fn new(operation_of: Arc<OperationOf>) -> Self {
        Self { operation_of, asked: 0, open: VecDeque::new() }
    }

    /// Creates the next request. It is for the operation of the statement `text`, if it is one.
    pub(crate) fn request(&mut self, length: usize, is_answered: bool, text: Option<&[u8]>) -> Request {
        let number = self.asked;
        self.asked += 1;
        if is_answered {
            self.open.push_back(number);
        }
        let operation = text.and_then(|text| (self.operation_of)(&String::from_utf8_lossy(text)));
        Request { length, number, subject: operation.map(Subject::from) }
    }

    /// Returns the number of the request that an answer completes.
    pub(crate) fn answered(&mut self) -> Option<u64> {
        self.open.pop_front()
    }
}

/// Waits for the answer to a statement, and explains what went wrong with the log of the server.
pub(crate) async fn answer(
    process: &ServerProcess,
    statement: &str,
    asked: impl Future<Output = Outcome<Vec<Row>>>,
) -> Outcome<Vec<Row>> {
    let what = match tokio::time::timeout(ANSWERS_WITHIN, asked).await {
        Ok(Ok(rows)) => return Ok(rows),
        Ok(Err(failure)) => format!("did not carry out {statement:?} ({failure})"),
        Err(_) => format!("did not answer {statement:?} within {ANSWERS_WITHIN:?}"),
    };
    Err(process.failure(&what))
}

/// What a server or its driver says about a statement.
#[allow(clippy::needless_pass_by_value, reason = "it is given to `map_err`")]
pub(crate) fn refusal(error: sqlx::Error) -> Failure {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code).unwrap_or_default();
    Failure::new(format!("{code} {error}").trim_start())
}

/// Gives a server, whose connections are made from the `ConnectOptions` of its driver, a session and the methods that
/// both servers have.
macro_rules! sql_server {
    ($server:ident, $session:ident, $connection:ty, $conversation:ident, $scheme:literal) => {
        /// A connection of a user with all privileges, bypassing all proxies. Its locks are held until it ends.
        #[derive(Debug)]
        pub struct $session($connection);

        impl $session {
            async fn connect(options: impl sqlx::ConnectOptions<Connection = $connection>) -> Outcome<Self> {
                // On the heap: it is large.
                let connection = Box::pin(options.disable_statement_logging().connect()).await;
                connection.map(Self).map_err($crate::sql::refusal)
            }

            /// Runs statements, and returns the rows of all of them.
            ///
            /// # Errors
            /// When there is no answer, or the server refuses.
            ///
            /// # Cancel safety
            /// After a dropped query the session is no longer usable.
            pub async fn query(&mut self, statement: &str) -> Outcome<Vec<Row>> {
                use sqlx::{Executor as _, Row as _};
                // As text: then each value is one.
                let query = sqlx::raw_sql(sqlx::AssertSqlSafe(statement));
                let rows = self.0.fetch_all(query).await.map_err($crate::sql::refusal)?;
                let mut texts = Vec::new();
                for row in &rows {
                    let values = (0..row.len()).map(|column| row.try_get_unchecked(column));
                    texts.push(values.collect::<Result<_, _>>().map_err($crate::sql::refusal)?);
                }
                Ok(texts)
            }
        }

        impl $server {
            /// Returns the address on which it listens for TCP.
            pub fn address(&self) -> SocketAddr {
                SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
            }

            /// Returns the files of its authority.
            pub fn certificates(&self) -> &Certificates {
                &self.certificates
            }

            /// Returns the URL of the server, including everything that a client needs to log in.
            pub fn url(&self) -> String {
                self.url_at(self.address())
            }

            /// Returns the same URL for a client that goes through a proxy at `address`.
            pub fn url_at(&self, address: SocketAddr) -> String {
                let encryption = self.options.encryption;
                let off = (encryption == Encryption::None).then(|| ("tls", "off".to_owned()));
                let files = encryption.url_options("extra_ca", &self.certificates);
                url::with_options(self.url_to(&address.to_string()), off.into_iter().chain(files))
            }

            /// Returns the URL for a client on this machine that does not use TCP.
            pub fn unix_url(&self) -> String {
                format!("{}?socket={}", self.url_to("localhost"), self.unix_socket().display())
            }

            fn url_to(&self, host: &str) -> String {
                let login = &self.options.users()[0];
                let login = url::login(&login.name, &login.password);
                format!("{}://{login}{host}/{}", $scheme, self.database())
            }

            /// Starts a proxy in front of it that finds the operation of a statement with `operation_of`.
            ///
            /// # Errors
            /// When it cannot listen.
            pub fn proxy(
                &self,
                operation_of: impl Fn(&str) -> Option<Operation> + Send + Sync + 'static,
            ) -> Outcome<TcpProxy> {
                let operation_of: Arc<OperationOf> = Arc::new(operation_of);
                TcpProxy::with_conversation(self.address(), move || {
                    Box::new($conversation::new(Arc::clone(&operation_of)))
                })
            }

            /// Runs statements on the server as a user with all privileges, bypassing all proxies.
            ///
            /// # Errors
            /// When there is no answer, or the server refuses.
            ///
            /// # Cancel safety
            /// If the future is dropped, it is not known whether the statements are run.
            pub async fn query(&self, statement: &str) -> Outcome<Vec<Row>> {
                let asked = async { self.session().await?.query(statement).await };
                $crate::sql::answer(&self.process, statement, asked).await
            }

            /// Returns the single value that `statement` selects, as `query` does; `None` for NULL and for no row.
            ///
            /// # Errors
            /// Same as `query`.
            ///
            /// # Cancel safety
            /// Same as `query`.
            pub async fn value(&self, statement: &str) -> Outcome<Option<String>> {
                Ok(self.query(statement).await?.into_iter().flatten().next().flatten())
            }
        }
    };
}

pub(crate) use sql_server;
