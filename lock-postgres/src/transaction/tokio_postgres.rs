//! Transactions of the crate `tokio-postgres`.

use std::error::Error as _;

use lock_core::{LockError, Operation};
use lock_kit::gone;
use lock_sql::{Answer, Failure, Row, broken};
use tokio_postgres::error::Severity;
use tokio_postgres::{Error, SimpleQueryMessage, SimpleQueryRow, Transaction};

use super::clients::{Ask, GenericTransaction};
use crate::failure::{explain_code, why};

impl GenericTransaction for Transaction<'_> {}

impl Ask for Transaction<'_> {
    async fn ask(&mut self, statements: String) -> Result<Answer, Failure> {
        read(&self.simple_query(&statements).await.map_err(failure)?).map_err(failure)
    }
}

fn read(messages: &[SimpleQueryMessage]) -> Result<Answer, Error> {
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(values(row)),
        _ => None,
    });
    Ok(Answer { rows: rows.collect::<Result<_, _>>()?, ..Answer::default() })
}

fn values(row: &SimpleQueryRow) -> Result<Row, Error> {
    (0..row.len()).map(|column| Ok(row.try_get(column)?.map(str::to_owned))).collect()
}

fn failure(error: Error) -> Failure {
    let Some(said) = error.as_db_error() else { return Failure::Broken(explain_connection(error)) };
    let code = said.code().code();
    let is_last_word = matches!(said.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
    let why = why(code);
    let explained = explain_code(Operation::Acquire, code, said.message()).caused_by(error);
    if is_last_word { Failure::Broken(explained) } else { Failure::Refused { why, error: explained } }
}

fn explain_connection(error: Error) -> LockError {
    let explained = match error.source() {
        _ if error.is_closed() => gone(Operation::Acquire),
        Some(cause) => broken(Operation::Acquire, format_args!("{error}: {cause}")),
        None => broken(Operation::Acquire, &error),
    };
    explained.caused_by(error)
}
