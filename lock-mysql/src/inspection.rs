//! Inspects the holder and the waiters of a lock.
//!
//! The server knows which *connection* holds a lock. A waiter describes itself in its statement, which is visible for as long as it
//! waits. A holder describes itself only in the [table](crate::TokenSource::Table).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZeroU32;
use std::time::Duration;

use lock_core::{
    FencingToken, HolderId, LockError, LockKind, LockName, Mode, NameRules, Operation, Participant,
};
use lock_sql::{Answer, Failure, Listed, Row, Waiter, mode_of, moment, nonsense};

use crate::admission::Refusal;
use crate::dialect::{Client, MySql};
use crate::gate;
use crate::options::TokenSource;
use crate::parts::{Name, Parts};
use crate::run::Run;
use crate::session::SessionId;
use crate::statement::{self, Holder, waits_for};

/// The connection of a waiter, since when it waits, and its statement.
const WAITER_COLUMNS: usize = 3;

/// The table's record of a lock's last holder.
pub(crate) struct Record {
    pub(crate) token: FencingToken,
    attempt: String,
    connection: u64,
    run: String,
    since: u64,
    holder: Option<Holder>,
}

impl Record {
    fn read(row: &[Option<String>]) -> Option<Self> {
        let [token, attempt, connection, run, since, holder] = row else { return None };
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
        Self::read(&text.splitn(6, ' ').map(|word| Some(word.to_owned())).collect::<Row>())
    }

    /// Whether it is that of an attempt behind the gate.
    fn waits(&self) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.waits)
    }

    fn is_of(&self, connection: u64, run: &Run) -> bool {
        let since = Duration::from_micros(self.since);
        self.connection == connection
            && Run::read(&self.run, since).is_some_and(|written| written.is_same_as(run))
    }

    fn participant(self) -> Participant {
        let mode = mode_of(self.holder.as_ref().and_then(|holder| holder.mode.as_deref()));
        let token = Some(self.token).filter(|_| !self.waits());
        let mut participant =
            Participant::new(HolderId::new(&self.attempt)).with_mode(mode).with_token(token);
        participant.since = moment(self.since);
        if let Some(holder) = self.holder {
            holder.client.describe(&mut participant);
        }
        participant
    }
}

/// The holder that a refusal names, if it names one.
pub(crate) fn named((connection, record): Refusal, run: &Run) -> Option<Participant> {
    let connection = connection?;
    let record = record.as_deref().and_then(Record::of_text);
    let record = record.filter(|record| record.is_of(connection, run));
    if record.as_ref().is_some_and(Record::waits) {
        return None;
    }
    Some(record.map_or_else(|| Participant::new(id_of(connection, run)), Record::participant))
}

/// The id of a holder without a record: its connection.
pub(crate) fn id_of(connection: u64, run: &Run) -> HolderId {
    HolderId::new(format!("connection {connection} of {run}"))
}

/// A holder of the lock, or of permits.
pub(crate) struct Holding {
    pub(crate) connection: u64,
    /// The parts that the connection has, of which the first one shows the hold.
    pub(crate) first: Name,
    count: usize,
    pub(crate) record: Option<Record>,
}

impl Holding {
    fn new(connection: u64, first: &Name, record: Option<Record>) -> Self {
        Self { connection, first: first.clone(), count: 1, record }
    }

    pub(crate) fn is(&self, id: &HolderId, run: &Run) -> bool {
        match &self.record {
            Some(record) => record.attempt == id.as_str(),
            None => id_of(self.connection, run) == *id,
        }
    }

    /// It has one more part. A slot that the connection had before may still have a record.
    fn also_has(&mut self, record: Option<Record>) {
        self.count += 1;
        if record.as_ref().map(|new| new.token) > self.record.as_ref().map(|old| old.token) {
            self.record = record;
        }
    }
}

/// What the server has of a lock or a semaphore.
pub(crate) struct View {
    /// The session that has looked.
    pub(crate) seen_by: SessionId,
    pub(crate) holders: Vec<Holding>,
    /// The connection that has the gate and waits for what is behind it, if one does, and what it says of itself.
    head: Option<(u64, Option<Record>)>,
}

/// What the table says of the last holders of these parts, by name.
async fn records(
    client: &Client,
    names: &[Name],
    operation: Operation,
) -> Result<HashMap<String, Record>, LockError> {
    if client.settings.dialect.fencing != TokenSource::Table {
        return Ok(HashMap::new());
    }
    let answer = client.control.ask(operation, statement::last_holders(names, operation)).await?;
    let entry = |row: &Row| Some((row.first()?.clone()?, Record::read(row.get(1..)?)?));
    Ok(answer.rows.iter().filter_map(entry).collect())
}

pub(crate) async fn view(client: &Client, parts: &Parts, operation: Operation) -> Result<View, LockError> {
    let names = parts.all();
    // Before and after, so that a record belongs to the holder in between.
    let before = records(client, &names, operation).await?;
    let statement = statement::holders(names.iter().map(|name| &**name), operation);
    let said = client.control.try_to_ask(operation, statement, None).await;
    let (seen_by, answer) = said.map_err(Failure::into_error)?;
    let mut after = records(client, &names, operation).await?;
    let connections = answer.value().unwrap_or_default().split(' ').map(|number| number.parse().ok());
    let connections: Option<Vec<u64>> = connections.collect();
    let connections = connections.filter(|connections| connections.len() == names.len());
    let connections = connections.ok_or_else(|| nonsense(operation, "it does not say who holds the lock"))?;
    let mut record_of = |name: &Name, connection: u64| {
        let token = |record: &Record| record.token;
        let is_steady = before.get(&**name).map(token) == after.get(&**name).map(token);
        after.remove(&**name).filter(|record| is_steady && record.is_of(connection, &seen_by.run))
    };
    let mut holders: Vec<Holding> = Vec::new();
    for (name, connection) in
        names.iter().zip(&connections).skip(1).filter(|(_, connection)| **connection != 0)
    {
        let record = record_of(name, *connection);
        match holders.iter_mut().find(|known| known.connection == *connection) {
            Some(known) => known.also_has(record),
            None => holders.push(Holding::new(*connection, name, record)),
        }
    }
    let mut head = None;
    if let Some(first) = connections.first().copied().filter(|first| *first != 0) {
        let record = record_of(&parts.gate, first);
        // A holder keeps the gate only of a lock that has no readers.
        let waits = record.as_ref().is_some_and(Record::waits);
        if waits || parts.kind == LockKind::Semaphore || !holders.is_empty() {
            head = Some((first, record.filter(|_| waits)));
        } else {
            holders.push(Holding::new(first, &parts.gate, record));
        }
    }
    Ok(View { seen_by, holders, head })
}

/// Those that hold it, and those that wait for it.
pub(crate) async fn inspect(
    client: &Client,
    parts: &Parts,
) -> Result<(Vec<Participant>, Vec<Participant>), LockError> {
    let View { seen_by, holders, head } = view(client, parts, Operation::Inspect).await?;
    let (mut size, mut found) = (None, Vec::new());
    for holding in holders {
        if parts.kind == LockKind::Semaphore && holding.record.is_none() && size.is_none() {
            size = size_with(client, parts, &holding.first).await?;
        }
        let mode = mode_of_holder(parts, &holding, size);
        let participant = match holding.record {
            Some(record) => record.participant(),
            None => stranger(client, holding.connection, &seen_by.run).await?,
        };
        found.push(participant.with_mode(mode));
    }
    Ok((found, waiters(client, parts, head).await?))
}

fn mode_of_holder(parts: &Parts, holding: &Holding, size: Option<NonZeroU32>) -> Mode {
    if parts.kind == LockKind::Lock {
        return if holding.first == parts.gate { Mode::Exclusive } else { Mode::Shared };
    }
    let written = holding.record.as_ref().and_then(|record| record.holder.as_ref());
    if let Some(written) = written {
        return mode_of(written.mode.as_deref());
    }
    let take = u32::try_from(holding.count).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
    Mode::Permits { take, of: size.unwrap_or(take) }
}

/// The size of the semaphore, by the holder of this slot.
async fn size_with(client: &Client, parts: &Parts, slot: &Name) -> Result<Option<NonZeroU32>, LockError> {
    let index = slot.strip_prefix(&*parts.stem()).and_then(|index| index.parse().ok());
    let Some(index) = index else { return Ok(None) };
    let asked = client.control.ask(Operation::Inspect, gate::sizes(parts, index, Operation::Inspect)).await?;
    Ok(asked.value().and_then(gate::size_of).and_then(NonZeroU32::new))
}

/// Reads what is said of [all](statement::held) locks, and who holds those that one client holds alone and none waits for.
pub(crate) fn listed(dialect: &MySql, seen_by: &SessionId, answer: &Answer, names: NameRules) -> Vec<Listed> {
    let (waits, held): (Vec<_>, Vec<_>) = answer.rows.iter().partition(|row| row.len() == WAITER_COLUMNS);
    let waited_for: HashSet<_> =
        waits.into_iter().filter_map(|row| row.last()?.as_deref()).flat_map(statement::waited_for).collect();
    let read = |row: &Row| {
        let [Some(part), record @ .., connection] = row.as_slice() else { return None };
        let record = Record::read(record)?;
        let holder = record.holder.as_ref()?;
        let (name, mode) = (LockName::new(&holder.lock).ok()?, mode_of(holder.mode.as_deref()));
        let parts = Parts::new(dialect.name(&names.apply(&name)), mode.kind());
        // Clients with another prefix call it otherwise.
        parts.contain(part).then(|| {
            let connection = connection.as_deref().and_then(|number| number.parse().ok());
            let is_alone = mode == Mode::Exclusive
                && !record.waits()
                && connection.is_some_and(|connection| record.is_of(connection, &seen_by.run))
                && !waited_for.iter().any(|name| parts.contain(name));
            ((name, mode.kind()), is_alone.then(|| record.participant()))
        })
    };
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (lock, holder) in held.into_iter().filter_map(read) {
        found.entry(lock).or_default().push(holder);
    }
    let listed = |((name, kind), holders): ((LockName, LockKind), Vec<Option<Participant>>)| {
        // Beside readers, an exclusive attempt waits.
        let holders = if holders.len() == 1 { holders.into_iter().collect() } else { None };
        (name, kind, holders.map(|holders| (holders, Vec::new())))
    };
    found.into_iter().map(listed).collect()
}

/// A holder without a record.
async fn stranger(client: &Client, connection: u64, run: &Run) -> Result<Participant, LockError> {
    let answer = client.control.ask(Operation::Inspect, statement::peer(connection)).await?;
    let mut participant = Participant::new(id_of(connection, run));
    // Without a privilege, the server shows nothing about other users' connections.
    participant.host = answer.value().filter(|host| !host.is_empty()).map(str::to_owned);
    Ok(participant)
}

/// The waiters: those of the client's own user, or all of them if the user may see them.
async fn waiters(
    client: &Client,
    parts: &Parts,
    head: Option<(u64, Option<Record>)>,
) -> Result<Vec<Participant>, LockError> {
    let statement = statement::waiters(parts);
    let mut rows = client.control.ask(Operation::Inspect, statement).await?.rows;
    rows.retain(|row| row.get(2).and_then(Option::as_deref).is_some_and(|text| waits_for(text, parts)));
    let Some((first, record)) = head else { return Ok(in_order(&rows)) };
    // The one behind the gate comes first. If it polls, the server does not show it as a waiter.
    let first = Some(first.to_string());
    let (ahead, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.first() == Some(&first));
    let mut waiters = in_order(&ahead);
    if waiters.is_empty() {
        waiters.extend(record.map(Record::participant));
    }
    waiters.extend(in_order(&rows));
    Ok(waiters)
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
    Some(((second, waiter.since), waiter.participant()))
}
