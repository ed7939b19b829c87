//! What the fixtures of the SQL databases have in common.

use lock_core::Operation;

use crate::Failure;
use crate::options::User;
use crate::proxy::{IN_ORDER, Request, Subject};

/// Returns which operation a statement is for, by its text.
pub type OperationOf = fn(&str) -> Option<Operation>;

/// One row: a text for each column, `None` for NULL.
pub type Row = Vec<Option<String>>;

/// Gives a server without users one that has no privileges.
pub(crate) fn at_least_one(users: &mut Vec<User>) {
    if users.is_empty() {
        users.push(User { name: "locks".to_owned(), password: "secret".to_owned(), rights: Vec::new() });
    }
}

/// Returns a request. It is for the operation of the statement `text`, if it is one.
pub(crate) fn request(
    length: usize,
    is_answered: bool,
    text: Option<&[u8]>,
    operation_of: OperationOf,
) -> Request {
    let operation = text.and_then(|text| operation_of(&String::from_utf8_lossy(text)));
    Request { length, number: IN_ORDER.filter(|_| is_answered), subject: operation.map(Subject::from) }
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
                let texts =
                    rows.iter().map(|row| (0..row.len()).map(|at| row.try_get_unchecked(at)).collect());
                texts.collect::<Result<_, _>>().map_err($crate::sql::refusal)
            }
        }

        impl $server {
            /// Returns the URL of the server, including everything that a client needs to log in.
            pub fn url(&self) -> String {
                self.url_at(self.address())
            }

            /// Returns the same URL for a client that goes through a proxy at `address`.
            pub fn url_at(&self, address: SocketAddr) -> String {
                let off = (!self.place.options.speaks_tls()).then(|| ("tls", "off".to_owned()));
                let options = off.into_iter().chain(self.files("extra_ca"));
                self.url_to($scheme, &format!("{address}/{}", self.database()), options)
            }

            /// Returns the URL for a client on this machine that does not use TCP.
            pub fn unix_url(&self) -> String {
                let socket = ("socket", self.unix_socket().display().to_string());
                self.url_to($scheme, &format!("localhost/{}", self.database()), [socket])
            }

            fn database(&self) -> &str {
                self.place.options.database.as_deref().unwrap_or_default()
            }

            /// Starts a proxy in front of it that finds the operation of a statement with `operation_of`.
            ///
            /// # Errors
            /// When it cannot listen.
            pub fn proxy(&self, operation_of: OperationOf) -> Outcome<TcpProxy> {
                TcpProxy::with_conversation(self.address(), move || {
                    Box::new($conversation::new(operation_of))
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
                self.process.answer(statement, asked).await
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
