//! Inspects the holder and the waiters of a lock, and breaks holds.
//!
//! The server knows which *connection* holds a lock. A waiter describes itself in its statement, which is visible for as long as it
//! waits. A holder describes itself only in the [table](crate::TokenSource::Table).

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::spi::within;
use lock_core::{
    AttemptId, Broken, ErrorKind, FencingToken, HolderId, InspectRequest, LockError, LockKind, LockName,
    LockStatus, Mode, Operation, Participant,
};
use lock_kit::no_answer;
use lock_sql::{Row, Why, nonsense};

use crate::backend::MySqlBackend;
use crate::claim::{Name, Refusal};
use crate::gate;
use crate::options::TokenSource;
use crate::parts::{MOST_SLOTS, Parts, mode_of};
use crate::run::Run;
use crate::session::SessionId;
use crate::session_tag;
use crate::statement::{self, Holder, Waiter};

/// The pause between two checks whether a killed connection has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The least time that a break gets.
const SHORTEST_TIME_TO_BREAK: Duration = Duration::from_secs(10);

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
pub(crate) fn named(refusal: &Refusal, run: &Run) -> Option<Participant> {
    let connection = refusal.connection?;
    let record = refusal.record.as_deref().and_then(Record::of_text);
    let record = record.filter(|record| record.is_of(connection, run));
    if record.as_ref().is_some_and(Record::waits) {
        return None;
    }
    Some(record.map_or_else(|| Participant::new(id_of(connection, run)), Record::participant))
}

fn moment(microseconds: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_micros(microseconds))
}

/// The id of a holder without a record: its connection.
pub(crate) fn id_of(connection: u64, run: &Run) -> HolderId {
    HolderId::new(format!("connection {connection} of {run}"))
}

/// A holder of the lock, or of permits.
struct Holding {
    connection: u64,
    /// The parts that the connection has, of which the first one shows the hold.
    first: Name,
    count: usize,
    record: Option<Record>,
    /// Those that share it, if the record says that it was taken for several.
    readers: Option<Vec<Reader>>,
}

/// One of several that share a slot.
struct Reader {
    attempt: String,
    token: FencingToken,
}

impl Holding {
    fn new(connection: u64, first: &Name, record: Option<Record>) -> Self {
        Self { connection, first: Arc::clone(first), count: 1, record, readers: None }
    }

    fn is(&self, id: &HolderId, run: &Run) -> bool {
        match (&self.readers, &self.record) {
            (Some(readers), _) => readers.iter().any(|reader| reader.attempt == id.as_str()),
            (None, Some(record)) => record.attempt == id.as_str(),
            (None, None) => id_of(self.connection, run) == *id,
        }
    }

    /// Finds out which of those that share it have not ended.
    async fn look_at_readers(
        &mut self,
        backend: &MySqlBackend,
        operation: Operation,
    ) -> Result<(), LockError> {
        let Some(record) = &self.record else { return Ok(()) };
        let together = record.holder.as_ref().map(|holder| holder.together.as_slice()).unwrap_or_default();
        let is_id = |text: &String| text.len() == 32 && text.chars().all(|digit| digit.is_ascii_hexdigit());
        if together.is_empty() || !together.iter().all(is_id) {
            return Ok(());
        }
        let names = together.iter().map(|attempt| session_tag::of_reader(attempt).to_string());
        let answer = backend.client.control.ask(operation, statement::holders(names, operation)).await?;
        let connections = answer.value().unwrap_or_default().split(' ');
        let readers = together.iter().zip(statement::below_the_last(together.len())).zip(connections);
        let of_connection = self.connection.to_string();
        let readers = readers.filter(|(_, connection)| **connection == of_connection);
        let reader = |((attempt, below), _): ((&String, u64), _)| Reader {
            attempt: attempt.clone(),
            token: FencingToken::new(record.token.get().saturating_sub(below)),
        };
        self.readers = Some(readers.map(reader).collect());
        Ok(())
    }

    /// Those that have it, if a record says who.
    fn participants(self) -> Option<Vec<Participant>> {
        let one = self.record?.participant();
        let Some(readers) = self.readers else { return Some(vec![one]) };
        let participant = |Reader { attempt, token }| {
            let mut reader = one.clone().with_token(Some(token));
            reader.id = HolderId::new(attempt);
            reader
        };
        Some(readers.into_iter().map(participant).collect())
    }
}

/// What the server has of a lock or a semaphore.
struct View {
    /// The session that has looked.
    seen_by: SessionId,
    holders: Vec<Holding>,
    /// The connection that has the gate and waits for what is behind it, if one does, and what it says of itself.
    head: Option<(u64, Option<Record>)>,
}

async fn view(backend: &MySqlBackend, parts: &Parts, operation: Operation) -> Result<View, LockError> {
    let control = &backend.client.control;
    let slots = if parts.kind == LockKind::Semaphore {
        MOST_SLOTS
    } else {
        backend.client.settings.dialect.manner.readers
    };
    let names: Vec<_> =
        std::iter::once(Arc::clone(&parts.gate)).chain((0..slots).map(|index| parts.slot(index))).collect();
    let records = async || -> Result<HashMap<String, Record>, LockError> {
        if backend.client.settings.dialect.fencing != TokenSource::Table {
            return Ok(HashMap::new());
        }
        let statement = statement::last_holders(names.iter().cloned(), operation);
        let answer = control.ask(operation, statement).await?;
        let entry = |row: &Row| Some((row.first()?.clone()?, Record::read(row.get(1..)?)?));
        Ok(answer.rows.iter().filter_map(entry).collect())
    };
    // Before and after, so that a record belongs to the holder in between.
    let before = records().await?;
    let statement = statement::holders(names.iter().map(ToString::to_string), operation);
    let (seen_by, answer) = control.ask_as(operation, statement).await?;
    let mut after = records().await?;
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
        let Some(known) = holders.iter_mut().find(|known| known.connection == *connection) else {
            holders.push(Holding::new(*connection, name, record));
            continue;
        };
        known.count += 1;
        // A slot that the connection had before may still have a record.
        let is_newer = record.as_ref().map(|new| new.token) > known.record.as_ref().map(|old| old.token);
        if is_newer {
            known.record = record;
        }
    }
    for holding in &mut holders {
        holding.look_at_readers(backend, operation).await?;
    }
    let mut head = None;
    let at_the_gate = connections.first().copied().unwrap_or(0);
    if at_the_gate != 0 {
        let record = record_of(&parts.gate, at_the_gate);
        // A holder keeps the gate only of a lock that has no readers.
        let waits = record.as_ref().is_some_and(Record::waits);
        if waits || parts.kind == LockKind::Semaphore || !holders.is_empty() {
            head = Some((at_the_gate, record.filter(|_| waits)));
        } else {
            holders.push(Holding::new(at_the_gate, &parts.gate, record));
        }
    }
    Ok(View { seen_by, holders, head })
}

pub(crate) async fn inspect(
    backend: &MySqlBackend,
    request: &InspectRequest,
) -> Result<LockStatus, LockError> {
    let parts = backend.parts(request.physical(), request.kind());
    let mut status = LockStatus::free(request.name().clone());
    let look = async {
        let View { seen_by, holders, head } = view(backend, &parts, Operation::Inspect).await?;
        let mut size = None;
        for holding in holders {
            if parts.kind == LockKind::Semaphore && holding.record.is_none() && size.is_none() {
                size = size_with(backend, &parts, &holding.first).await?;
            }
            let mode = mode_of_holder(&parts, &holding, size);
            let connection = holding.connection;
            let participants = match holding.participants() {
                Some(participants) => participants,
                None => vec![stranger(backend, connection, &seen_by.run).await?],
            };
            status.holders.extend(participants.into_iter().map(|participant| participant.with_mode(mode)));
        }
        let waits = waiters(backend, &parts, head).await?;
        status.waiters = waits.into_iter().flat_map(|wait| with_readers(backend, wait)).collect();
        Ok(status)
    };
    let clock = backend.client.settings.clock();
    // Time for several statements and for opening a connection.
    let deadline = clock.now().plus(backend.client.settings.request_timeout * 4);
    within(clock, deadline, look).await.unwrap_or_else(|| Err(no_answer(Operation::Inspect)))
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
async fn size_with(
    backend: &MySqlBackend,
    parts: &Parts,
    slot: &Name,
) -> Result<Option<NonZeroU32>, LockError> {
    let index = slot.strip_prefix(&*parts.stem()).and_then(|index| index.parse().ok());
    let Some(index) = index else { return Ok(None) };
    let asked =
        backend.client.control.ask(Operation::Inspect, gate::sizes(parts, index, Operation::Inspect)).await?;
    Ok(asked.value().and_then(gate::size_of).and_then(NonZeroU32::new))
}

/// A holder without a record.
async fn stranger(backend: &MySqlBackend, connection: u64, run: &Run) -> Result<Participant, LockError> {
    let answer = backend.client.control.ask(Operation::Inspect, statement::peer(connection)).await?;
    let mut participant = Participant::new(id_of(connection, run));
    // Without a privilege, the server shows nothing about other users' connections.
    participant.host = answer.value().filter(|host| !host.is_empty()).map(str::to_owned);
    Ok(participant)
}

/// The waiters: those of the client's own user, or all of them if the user may see them.
async fn waiters(
    backend: &MySqlBackend,
    parts: &Parts,
    head: Option<(u64, Option<Record>)>,
) -> Result<Vec<Participant>, LockError> {
    let statement = statement::waiters(parts);
    let mut rows = backend.client.control.ask(Operation::Inspect, statement).await?.rows;
    rows.retain(|row| row.get(2).and_then(Option::as_deref).is_some_and(|text| Waiter::is_for(text, parts)));
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

/// A waiter, or the readers of this client that take part in its wait. The server knows only the one that has sent it.
fn with_readers(backend: &MySqlBackend, wait: Participant) -> Vec<Participant> {
    let readers = backend.readers_with(wait.id.as_str());
    if readers.is_empty() {
        return vec![wait];
    }
    let participant = |id: AttemptId| {
        let mut reader = wait.clone();
        reader.id = HolderId::new(id.to_string());
        reader
    };
    readers.into_iter().map(participant).collect()
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
    let mode = mode_of(waiter.mode.as_deref());
    let mut participant = Participant::new(HolderId::new(&waiter.id)).with_mode(mode);
    waiter.client.describe(&mut participant);
    participant.since = moment(waiter.since);
    Some(((second, waiter.since), participant))
}

pub(crate) async fn break_holder(
    backend: &MySqlBackend,
    request: &InspectRequest,
    holder: &HolderId,
) -> Result<Broken, LockError> {
    let clock = backend.client.settings.clock();
    // A busy server takes its time to end a connection, and a break has no lease that runs out meanwhile.
    let deadline =
        clock.now().plus((backend.client.settings.request_timeout * 4).max(SHORTEST_TIME_TO_BREAK));
    let breaking = end_connection_of(backend, request, holder);
    within(clock, deadline, breaking).await.unwrap_or_else(|| Err(no_answer(Operation::Break)))
}

async fn end_connection_of(
    backend: &MySqlBackend,
    request: &InspectRequest,
    holder: &HolderId,
) -> Result<Broken, LockError> {
    let (clock, mut told) = (backend.client.settings.clock(), None);
    loop {
        match end_what_it_has(backend, request, holder, &mut told).await {
            // Whether it was taken away shows when the server answers again.
            Err(error) if told.is_some() && error.kind() == ErrorKind::Unreachable => {
                clock.sleep_until(clock.now().plus(LOOK_EVERY)).await;
            }
            outcome => return outcome,
        }
    }
}

/// Ends the connection of the holder. Leaves in `told` what a command has done whose answer was lost, if it arrived.
async fn end_what_it_has(
    backend: &MySqlBackend,
    request: &InspectRequest,
    holder: &HolderId,
    told: &mut Option<Broken>,
) -> Result<Broken, LockError> {
    let parts = backend.parts(request.physical(), request.kind());
    let View { seen_by, holders, .. } = view(backend, &parts, Operation::Break).await?;
    let Some(holding) = holders.into_iter().find(|holding| holding.is(holder, &seen_by.run)) else {
        return Ok(told.take().unwrap_or_else(Broken::not_held));
    };
    let Holding { connection, first: name, record, .. } = holding;
    let mut broken = Broken::taken_away();
    broken.also_lost = match record {
        Some(_) => Some(others_written_down(backend, connection, &name).await?),
        None => None,
    };
    match end(backend, &seen_by, connection).await {
        Ok(Ended::Now) => {}
        Ok(Ended::Before) => return Ok(told.take().unwrap_or_else(Broken::not_held)),
        Err(error) => {
            *told = Some(broken);
            return Err(error);
        }
    }
    freed(backend, &name, &seen_by, connection).await?;
    Ok(broken)
}

/// The other locks that end with a connection whose locks are in the table.
async fn others_written_down(
    backend: &MySqlBackend,
    connection: u64,
    name: &Name,
) -> Result<Vec<LockName>, LockError> {
    let answer = backend.client.control.ask(Operation::Break, statement::also_held(connection, name)).await?;
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

async fn end(backend: &MySqlBackend, seen_by: &SessionId, connection: u64) -> Result<Ended, LockError> {
    let end = statement::end(connection, Operation::Break);
    match backend.client.control.ask_in_run_of(seen_by, Operation::Break, end).await {
        Ok(_) => Ok(Ended::Now),
        Err(failure) if failure.why() == Some(Why::NoSession) => Ok(Ended::Before),
        Err(failure) => Err(failure.into_error()),
    }
}

/// Waits until the connection no longer holds the lock. A MySQL 5.7 may miss the command to end a connection that goes back to
/// reading at that very moment, so it gets the command again.
async fn freed(
    backend: &MySqlBackend,
    name: &Name,
    seen_by: &SessionId,
    connection: u64,
) -> Result<(), LockError> {
    let clock = backend.client.settings.clock();
    for looks in 1_u32.. {
        // The connection is being ended by now: a look that the server does not answer is repeated until the time is over.
        let looked =
            backend.client.control.ask(Operation::Break, statement::holder(name, Operation::Break)).await;
        if looked.is_ok_and(|answer| answer.value() != Some(&connection.to_string())) {
            return Ok(());
        }
        if looks.is_multiple_of(LOOKS_BEFORE_ANOTHER_END) {
            // What fails is repeated as well.
            let _ = end(backend, seen_by, connection).await;
        }
        clock.sleep_until(clock.now().plus(LOOK_EVERY)).await;
    }
    Ok(())
}
