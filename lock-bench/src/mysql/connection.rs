//! Connections through the crate `sqlx`: a task owns each connection, on the caller's runtime or on another thread.

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow, MySqlSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _};
use tokio::sync::{mpsc, oneshot};

use crate::contender::{Driving, Target};
use crate::driving::Driven;
use crate::failure::{Context, Failure, Outcome};

/// A connection that ends when this is dropped.
pub(super) type Connection = Driven<Statements>;

/// A request to the task that owns a connection.
enum Order {
    Statement { text: String, answer: oneshot::Sender<Outcome<Vec<MySqlRow>>> },
    Ping { answer: oneshot::Sender<Outcome<()>> },
}

/// Runs statements on a connection, one after the other.
#[derive(Clone)]
pub(super) struct Statements(mpsc::UnboundedSender<Order>);

impl Statements {
    pub(super) async fn rows(&self, text: String) -> Outcome<Vec<MySqlRow>> {
        let (answer, answered) = oneshot::channel();
        // If this fails, the answer is dropped with the order, which the next line reports.
        let _ = self.0.send(Order::Statement { text, answer });
        answered.await.context("the connection has ended")?
    }

    /// Returns the number in the first column of the first row; `None` for NULL.
    pub(super) async fn number(&self, text: String) -> Outcome<Option<u64>> {
        number(&self.rows(text).await?)
    }

    pub(super) async fn ping(&self) -> Outcome<()> {
        let (answer, answered) = oneshot::channel();
        let _ = self.0.send(Order::Ping { answer });
        answered.await.context("the connection has ended")?
    }
}

pub(super) fn number(rows: &[MySqlRow]) -> Outcome<Option<u64>> {
    let row = rows.first().context("an answer without a row")?;
    row.try_get_unchecked(0).context("an answer that is no number")
}

/// Converts a URL of distlock into options for the crate `sqlx`.
pub(super) fn options(target: &Target) -> Outcome<MySqlConnectOptions> {
    let (place, query) = target.url.split_once('?').unwrap_or((&target.url, ""));
    if query.split('&').any(|option| !matches!(option, "" | "tls=off")) {
        return Err(Failure::new(
            "only a server on TCP, in plain text, and without further options can be measured",
        ));
    }
    let options: MySqlConnectOptions = place.parse().context("the URL of the server")?;
    Ok(options.ssl_mode(MySqlSslMode::Disabled).disable_statement_logging())
}

pub(super) async fn open(target: &Target, driving: Driving) -> Outcome<Connection> {
    let options = options(target)?;
    let connecting = async move {
        let connection = options.connect().await.context("connecting to the server")?;
        let (orders, taken) = mpsc::unbounded_channel();
        tokio::spawn(own(connection, taken));
        Ok(Statements(orders))
    };
    Driven::open(driving, connecting).await
}

/// Runs until no requests can come any more.
async fn own(mut connection: MySqlConnection, mut orders: mpsc::UnboundedReceiver<Order>) {
    while let Some(order) = orders.recv().await {
        match order {
            Order::Statement { text, mut answer } => {
                let answered = tokio::select! {
                    biased;
                    rows = rows(&mut connection, text) => rows,
                    // The task that waited for a lock has gone: the server notices when the connection is dropped.
                    () = answer.closed() => return,
                };
                let _ = answer.send(answered);
            }
            Order::Ping { answer } => {
                let _ = answer.send(connection.ping().await.context("a ping"));
            }
        }
    }
    // Either the connection has already ended, or this tells the server.
    let _ = connection.close().await;
}

/// Runs the text in one round trip.
pub(super) async fn rows(connection: &mut MySqlConnection, text: String) -> Outcome<Vec<MySqlRow>> {
    let context = |error| Failure::new(format!("a statement: {error}"));
    sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(connection).await.map_err(context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn target(url: &str) -> Target {
        Target { url: url.to_owned(), lease: Duration::from_secs(1), lease_option: None }
    }

    #[test]
    fn only_what_can_be_driven_in_the_same_way_is_measured() {
        let read = options(&target("mysql://locks:secret@127.0.0.1:3307/?tls=off")).unwrap();
        assert_eq!((read.get_host(), read.get_port()), ("127.0.0.1", 3307));
        assert!(options(&target("mysql://locks@host/?extra_ca=/etc/ca.pem")).is_err());
        assert!(options(&target("mysql://locks@host/?socket=/run/mysqld.sock")).is_err());
    }
}
