//! Inspects the holder and the waiters of a lock, and breaks holds.
//!
//! The server knows which *connection* holds a lock, and some servers know [a little more](crate::survey). A waiter describes
//! itself in its statement, which is visible for as long as it waits. A holder describes itself only in the
//! [table](crate::TokenSource::Table).

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::spi::within;
use lock_core::{
    Broken, FencingToken, HolderId, InspectRequest, LockError, LockName, LockStatus, Operation, Others,
    Participant,
};

use crate::backend::MySqlBackend;
use crate::failure::{no_answer, nonsense};
use crate::link::{Name, Refusal};
use crate::options::TokenSource;
use crate::run::Run;
use crate::session::Row;
use crate::statement::{self, Holder, Waiter};
use crate::survey::{self, Belongings};

/// The pause between two checks whether a killed connection has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// After this many checks a connection that still has the lock gets the command to end once more.
const LOOKS_BEFORE_ANOTHER_END: u32 = 20;

/// The table's record of a lock's last holder.
struct Record {
    token: FencingToken,
    attempt: String,
    connection: u64,
    run: String,
    since: u64,
    holder: Option<Holder>,
}

impl Record {
    fn read(row: &Row) -> Option<Self> {
        let [token, attempt, connection, run, since, holder] = row.as_slice() else { return None };
        Some(Self {
            token: FencingToken::new(token.as_deref()?.parse().ok()?),
            attempt: attempt.clone()?,
            connection: connection.as_deref()?.parse().ok()?,
            run: run.clone()?,
            since: since.as_deref()?.parse().ok()?,
            holder: holder.as_deref().and_then(|text| serde_json::from_str(text).ok()),
        })
    }

    /// Reads the columns from one text, as a refusal has them.
    fn of_text(text: &str) -> Option<Self> {
        Self::read(&text.splitn(6, ' ').map(|word| Some(word.to_owned())).collect())
    }

    fn is_of(&self, connection: u64, run: &Run) -> bool {
        let since = Duration::from_micros(self.since);
        self.connection == connection
            && Run::read(&self.run, since).is_some_and(|written| written.is_same_as(run))
    }

    fn participant(self) -> Participant {
        let mut participant = Participant::new(HolderId::new(&self.attempt)).with_token(Some(self.token));
        participant.since = moment(self.since);
        if let Some(holder) = self.holder {
            participant.host = Some(holder.host);
            participant.pid = Some(holder.pid);
            participant.label = holder.label;
            participant.value = holder.value;
        }
        participant
    }
}

/// The holder that a refusal names, if it names one.
pub(crate) fn named(refusal: &Refusal, run: &Run) -> Option<Participant> {
    let connection = refusal.connection?;
    let record = refusal.record.as_deref().and_then(Record::of_text);
    let record = record.filter(|record| record.is_of(connection, run));
    Some(record.map_or_else(|| Participant::new(id_of(connection, run)), Record::participant))
}

fn moment(microseconds: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_micros(microseconds))
}

/// The id of a holder without a record: its connection.
pub(crate) fn id_of(connection: u64, run: &Run) -> HolderId {
    HolderId::new(format!("connection {connection} of {run}"))
}

/// The connection that holds the lock, and the run of the server.
struct Holding {
    connection: u64,
    run: Run,
    record: Option<Record>,
}

async fn holding(
    backend: &MySqlBackend,
    name: &Name,
    operation: Operation,
) -> Result<Option<Holding>, LockError> {
    let control = &backend.control;
    let record = async || -> Result<Option<Record>, LockError> {
        if backend.settings.fencing != TokenSource::Table {
            return Ok(None);
        }
        let answer = control.ask(operation, statement::last_holder(name, operation)).await?;
        Ok(answer.rows.first().and_then(Record::read))
    };
    // Before and after, so that the record belongs to the holder in between.
    let before = record().await?;
    let (run, answer) = control.ask_with_run(operation, statement::holder(name, operation)).await?;
    let connection = answer.value().and_then(|number| number.parse().ok());
    let connection: u64 =
        connection.ok_or_else(|| nonsense(operation, "it does not say who holds the lock"))?;
    if connection == 0 {
        return Ok(None);
    }
    let after = record().await?;
    let is_steady = before.as_ref().map(|record| record.token) == after.as_ref().map(|record| record.token);
    let record = after.filter(|record| is_steady && record.is_of(connection, &run));
    Ok(Some(Holding { connection, run, record }))
}

pub(crate) async fn inspect(
    backend: &MySqlBackend,
    request: &InspectRequest,
) -> Result<LockStatus, LockError> {
    let name = backend.name(request.physical());
    let mut status = LockStatus::free(request.name().clone());
    let look = async {
        if let Some(Holding { connection, run, record }) = holding(backend, &name, Operation::Inspect).await?
        {
            status.holders.push(match record {
                Some(record) => record.participant(),
                None => stranger(backend, connection, &run, &name).await?,
            });
        }
        status.waiters = waiters(backend, &name).await?;
        Ok(status)
    };
    let clock = backend.context.clock();
    // Time for several statements and for opening a connection.
    let deadline = clock.now().plus(backend.settings.request_timeout * 4);
    within(clock, deadline, look).await.unwrap_or_else(|| Err(no_answer(Operation::Inspect)))
}

/// A holder without a record.
async fn stranger(
    backend: &MySqlBackend,
    connection: u64,
    run: &Run,
    name: &Name,
) -> Result<Participant, LockError> {
    let answer = backend.control.ask(Operation::Inspect, statement::peer(connection)).await?;
    let mut participant = Participant::new(id_of(connection, run));
    // Without a privilege, the server shows nothing about other users' connections.
    participant.host = answer.value().filter(|host| !host.is_empty()).map(str::to_owned);
    let belongings = Belongings::of(backend, connection, run, name, Operation::Inspect).await?;
    let age = belongings.and_then(|belongings| belongings.age_of(name));
    participant.since = age.and_then(|age| SystemTime::now().checked_sub(age));
    Ok(participant)
}

/// The waiters: those of the client's own user, or all of them if the user may see them.
async fn waiters(backend: &MySqlBackend, name: &Name) -> Result<Vec<Participant>, LockError> {
    let statement = statement::waiters(name);
    let (run, answer) = backend.control.ask_with_run(Operation::Inspect, statement).await?;
    let mut rows = answer.rows;
    let known: HashSet<_> = rows.iter().filter_map(|row| row.first().cloned()).collect();
    let more = survey::waiters(backend, &run, name).await?;
    rows.extend(more.into_iter().filter(|row| row.first().is_some_and(|number| !known.contains(number))));
    rows.retain(|row| row.get(2).and_then(Option::as_deref).is_some_and(|text| Waiter::is_for(text, name)));
    Ok(in_order(&rows))
}

/// The waiters in order: by the second in which the server received each request, then by the waiters' own clocks.
fn in_order(rows: &[Row]) -> Vec<Participant> {
    let mut waiters: Vec<_> = rows.iter().filter_map(waiter).collect();
    waiters.sort_by_key(|(place, _)| *place);
    waiters.into_iter().map(|(_, participant)| participant).collect()
}

fn waiter(row: &Row) -> Option<((u64, u64), Participant)> {
    let [connection, second, statement] = row.as_slice() else { return None };
    let second: u64 = second.as_deref()?.split('.').next()?.parse().ok()?;
    let Some(waiter) = Waiter::of_statement(statement.as_deref()?) else {
        // Another program.
        let id = HolderId::new(format!("connection {}", connection.as_deref()?));
        let mut participant = Participant::new(id);
        participant.since = moment(second.saturating_mul(1_000_000));
        return Some(((second, 0), participant));
    };
    let mut participant = Participant::new(HolderId::new(&waiter.id));
    participant.host = Some(waiter.host);
    participant.pid = Some(waiter.pid);
    participant.label = waiter.label;
    participant.since = moment(waiter.since);
    Some(((second, waiter.since), participant))
}

pub(crate) async fn break_holder(
    backend: &MySqlBackend,
    request: &InspectRequest,
    holder: &HolderId,
) -> Result<Broken, LockError> {
    let clock = backend.context.clock();
    let deadline = clock.now().plus(backend.settings.request_timeout * 4);
    let breaking = end_connection_of(backend, request, holder);
    within(clock, deadline, breaking).await.unwrap_or_else(|| Err(no_answer(Operation::Break)))
}

async fn end_connection_of(
    backend: &MySqlBackend,
    request: &InspectRequest,
    holder: &HolderId,
) -> Result<Broken, LockError> {
    let name = backend.name(request.physical());
    let Some(Holding { connection, run, record }) = holding(backend, &name, Operation::Break).await? else {
        return Ok(Broken::not_held());
    };
    let id = record.as_ref().map_or_else(|| id_of(connection, &run), |record| HolderId::new(&record.attempt));
    if id != *holder {
        return Ok(Broken::not_held());
    }
    let also_lost = match record {
        Some(_) => Some(others_written_down(backend, connection, &name).await?),
        None => Belongings::of(backend, connection, &run, &name, Operation::Break)
            .await?
            .map(|belongings| belongings.others_than(&name, &backend.settings.prefix)),
    };
    if end(backend, &run, connection).await? == Ended::Before {
        return Ok(Broken::not_held());
    }
    freed(backend, &name, &run, connection).await?;
    let mut broken = Broken::taken_away();
    (broken.also_lost, broken.others) = match also_lost {
        Some(names) => (names, Others::Known),
        None => (Vec::new(), Others::Unknown),
    };
    Ok(broken)
}

/// The other locks that end with a connection whose locks are in the table.
async fn others_written_down(
    backend: &MySqlBackend,
    connection: u64,
    name: &Name,
) -> Result<Vec<LockName>, LockError> {
    let answer = backend.control.ask(Operation::Break, statement::also_held(connection, name)).await?;
    let texts = answer.rows.iter().filter_map(|row| row.first()?.as_deref());
    let holders = texts.filter_map(|text| serde_json::from_str::<Holder>(text).ok());
    let names: HashSet<_> = holders.filter_map(|holder| LockName::new(holder.lock).ok()).collect();
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort();
    Ok(names)
}

#[derive(PartialEq)]
enum Ended {
    Now,
    /// It has ended by itself meanwhile.
    Before,
}

async fn end(backend: &MySqlBackend, run: &Run, connection: u64) -> Result<Ended, LockError> {
    let end = statement::end(connection, Operation::Break);
    match backend.control.ask_of(run, Operation::Break, end).await {
        Ok(_) => Ok(Ended::Now),
        Err(failure) if failure.is_unknown_thread() => Ok(Ended::Before),
        Err(failure) => Err(failure.into_error()),
    }
}

/// Waits until the connection no longer holds the lock. A MySQL 5.7 may miss the command to end a connection that goes back to
/// reading at that very moment, so it gets the command again.
async fn freed(backend: &MySqlBackend, name: &Name, run: &Run, connection: u64) -> Result<(), LockError> {
    let clock = backend.context.clock();
    for looks in 1_u32.. {
        let answer = backend.control.ask(Operation::Break, statement::holder(name, Operation::Break)).await?;
        if answer.value() != Some(&connection.to_string()) {
            return Ok(());
        }
        if looks.is_multiple_of(LOOKS_BEFORE_ANOTHER_END) {
            end(backend, run, connection).await?;
        }
        clock.sleep_until(clock.now().plus(LOOK_EVERY)).await;
    }
    Ok(())
}
