//! Finds the nodes of others: who holds a lock and who waits for it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{HolderId, InspectRequest, LockKind, Mode, Operation, Participant};
use lock_entries::{InLine, Line, Lines, Shown, Told, how_many_hold, newer};
use zookeeper_client::{Error, MultiReadResult};

use crate::backend::{NAMES, READ_TOGETHER, ZooKeeperEntries};
use crate::contender::{Contender, Entrant, entrants, is_newer};
use crate::failure::{Failure, unexpected};
use crate::node::token_of;
use crate::permits::{LEASES, QUEUE};
use crate::queue::{in_order, refuse_strangers};
use crate::session::Session;
use crate::slots::REMEMBERED;

/// How many locks and semaphores one request looks at: no other client waits long for its answer.
const LOOKED_AT_TOGETHER: usize = 128;

/// The nodes of one holder or waiter, of which the first stands for all.
pub(crate) struct Nodes {
    pub(crate) session: Arc<Session>,
    pub(crate) paths: Vec<String>,
    /// The version of the first one's data; none if the user may not read it.
    pub(crate) version: Option<i32>,
}

impl Nodes {
    pub(crate) fn first(&self) -> &str {
        self.paths.first().map_or("", String::as_str)
    }
}

/// One that holds a lock or waits for it: how, and the paths of its nodes.
pub(crate) type Seat = (Mode, Vec<String>);

/// Those that hold a lock or wait for it, as the names of their nodes say.
pub(crate) struct Seats {
    pub(crate) all: Vec<Seat>,
    /// How many of the first hold it, if the names say that as well.
    pub(crate) holding: Option<usize>,
}

impl Lines for ZooKeeperEntries {
    type Failure = Failure;
    type Key = Nodes;

    /// The holders of a lock and its waiters as the servers know them now, in the order of the queue.
    async fn line(&self, request: &InspectRequest) -> Result<Line<Nodes>, Failure> {
        let session = self.sessions.any(Operation::Inspect).await.map_err(Failure::Refused)?;
        let look = || async {
            session.catch_up(&self.directory(request.physical())).await?;
            let line = self.lines(&session, std::slice::from_ref(request)).await?.pop();
            line.unwrap_or_else(|| Err(unexpected()))
        };
        session.patiently(look).await
    }

    /// The directories of locks stay for a while when they are empty, and a semaphore's is that of the lock with its name. The server
    /// catches up once, and then tells the lines of many locks together.
    async fn list(&self) -> Result<Vec<InspectRequest>, Failure> {
        let session = self.sessions.any(Operation::Inspect).await.map_err(Failure::Refused)?;
        let look = || async {
            session.catch_up(&self.root).await?;
            session.list(&self.root).await
        };
        let names = session.patiently(look).await?;
        let kinds = |name: &String| {
            [LockKind::Lock, LockKind::Semaphore].map(|kind| InspectRequest::found(name, kind))
        };
        let requests: Vec<_> =
            names.iter().filter(|name| *name != REMEMBERED).flat_map(kinds).flatten().collect();
        let mut found = Vec::new();
        for some in requests.chunks(LOOKED_AT_TOGETHER) {
            let told = session.patiently(|| self.lines(&session, some)).await;
            let mut lines = told.into_iter().flatten();
            found.extend(some.iter().filter_map(|request| match lines.next() {
                Some(Ok(line)) => line.seen(request, &NAMES),
                // Its own inspection says of which lock that is true, or has an answer.
                _ => Some(request.clone()),
            }));
        }
        Ok(found)
    }
}

impl ZooKeeperEntries {
    /// The lines of several locks and semaphores, as this server knows them.
    async fn lines(
        &self,
        session: &Arc<Session>,
        requests: &[InspectRequest],
    ) -> Result<Vec<Result<Line<Nodes>, Failure>>, Failure> {
        let directories: Vec<_> = requests.iter().map(|request| self.directories(request)).collect();
        let mut children = session.list_all(&directories.concat()).await?.into_iter();
        let mut seated = Vec::with_capacity(requests.len());
        for directories in &directories {
            // All of them, also behind one that was refused.
            let told: Vec<_> = children.by_ref().take(directories.len()).collect();
            seated.push(match (&directories[..], told.into_iter().collect::<Result<Vec<_>, _>>()) {
                (_, Err(failure)) => Err(failure),
                ([directory], Ok(children)) => self.seats(session, directory, &children.concat()).await,
                (both, Ok(children)) => self.seats_of_permits(session, both, children).await,
            });
        }
        let all: Vec<_> = seated.iter().flatten().flat_map(|seats| &seats.all).collect();
        let mut shown = self.read_all(session, &all).await?.into_iter();
        let mut line =
            |seats: Seats| self.line_of(shown.by_ref().take(seats.all.len()).collect(), seats.holding);
        Ok(seated.into_iter().map(|seats| seats.map(&mut line)).collect())
    }

    /// The directories in which those are that hold it and wait for it.
    fn directories(&self, request: &InspectRequest) -> Vec<String> {
        let directory = self.directory(request.physical());
        match request.kind() {
            LockKind::Semaphore => [QUEUE, LEASES].map(|name| format!("{directory}/{name}")).to_vec(),
            _ => vec![directory.to_string()],
        }
    }

    /// Those in a lock's directory with these children.
    async fn seats(&self, session: &Session, directory: &str, children: &[String]) -> Result<Seats, Failure> {
        if let Some(name) = children.iter().find(|name| is_newer(name)) {
            return Err(Failure::Refused(newer(name)));
        }
        let contenders = in_order(session, directory, children, self.recipe.accepted).await?;
        refuse_strangers(contenders.first(), children, self.recipe.accepted)?;
        let seat = |entrant: &Entrant| {
            (entrant.mode(), entrant.names().map(|name| format!("{directory}/{name}")).collect())
        };
        Ok(Seats { all: entrants(contenders).iter().map(seat).collect(), holding: None })
    }

    /// What those say of which the first hold the lock, without those that have gone.
    fn line_of(&self, shown: Vec<Option<Shown<Nodes>>>, holding: Option<usize>) -> Line<Nodes> {
        let still = holding.map(|holding| shown.iter().take(holding).flatten().count());
        let mut entries: Vec<_> = shown.into_iter().flatten().collect();
        if let Some(holding) = still {
            return Line { holding, entries };
        }
        let modes: Vec<_> = entries.iter().map(|entry| entry.participant.mode).collect();
        let mut holding = how_many_hold(&modes);
        let is_writer = |entry: &Shown<Nodes>| {
            let read = Contender::read(entry.participant.id.as_str(), self.recipe.accepted);
            read.is_some_and(|node| node.mode() == Mode::Exclusive)
        };
        if holding > 1 && entries.first().is_some_and(is_writer) {
            // It goes on reading, which Curator's readers do not see: they wait. So does perhaps one of which nothing can be read.
            let waits = |entry: &Shown<Nodes>| !matches!(entry.told, Some(Told::Ours(_)));
            entries[..holding].sort_by_key(waits);
            holding = entries[..holding].partition_point(|entry| !waits(entry));
        }
        Line { holding, entries }
    }

    /// Reads what nodes say, each time the first of those of one holder or waiter; none where it has gone.
    async fn read_all(
        &self,
        session: &Arc<Session>,
        seats: &[&Seat],
    ) -> Result<Vec<Option<Shown<Nodes>>>, Failure> {
        let mut all = Vec::with_capacity(seats.len());
        for some in seats.chunks(READ_TOGETHER) {
            let first: Vec<_> = some.iter().filter_map(|(_, paths)| paths.first().cloned()).collect();
            let found = session.read(&first).await?;
            all.extend(some.iter().zip(&first).zip(&found).map(|(((mode, paths), first), found)| {
                let name = first.rsplit('/').next().unwrap_or_default();
                let (participant, told) = self.participant(name, *mode, found)?;
                let version = match found {
                    MultiReadResult::Data { stat, .. } => Some(stat.version),
                    _ => None,
                };
                let key = Nodes { session: Arc::clone(session), paths: paths.clone(), version };
                Some(Shown { participant, told, key })
            }));
        }
        Ok(all)
    }

    /// The one whose node this is, and what the node says; none if the node is gone.
    pub(crate) fn participant(
        &self,
        name: &str,
        mode: Mode,
        found: &MultiReadResult,
    ) -> Option<(Participant, Option<Told>)> {
        let mut participant = Participant::new(HolderId::new(name)).with_mode(mode);
        let told = match found {
            MultiReadResult::Error { err: Error::NoNode } => return None,
            MultiReadResult::Data { data, stat } => {
                participant.token = Some(token_of(stat.czxid));
                participant.since = time_of(stat.ctime);
                Some(Told::read(data))
            }
            // The user may not read it.
            _ => None,
        };
        if told.as_ref().is_some_and(|told| told.mode() == Mode::Shared) {
            // Also a writer that goes on reading.
            participant.mode = Mode::Shared;
        }
        match &told {
            Some(Told::Ours(record)) => {
                record.clone().describe(&mut participant);
            }
            Some(Told::Foreign(data)) => participant.host = address_in(data),
            Some(Told::Newer) | None => {}
        }
        participant.token = participant.token.filter(|_| self.has_tokens());
        Some((participant, told))
    }
}

/// The address of its machine, which Curator writes.
fn address_in(data: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(data).ok().filter(|text| !text.is_empty())?;
    text.chars().all(|character| character.is_ascii_graphic()).then(|| text.to_owned())
}

fn time_of(milliseconds: i64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(u64::try_from(milliseconds).ok()?))
}
