//! Finds the nodes of others: who holds a lock and who waits for it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{HolderId, InspectRequest, LockKind, Mode, Operation, Participant};
use lock_entries::{InLine, Line, Lines, Shown, Told, how_many_hold, newer};
use zookeeper_client::{Error, MultiReadResult};

use crate::backend::{READ_TOGETHER, ZooKeeperEntries};
use crate::contender::{Contender, Entrant, entrants, is_newer};
use crate::failure::Failure;
use crate::node::token_of;
use crate::permits::{LEASES, QUEUE};
use crate::queue::{in_order, refuse_strangers};
use crate::session::Session;
use crate::slots::REMEMBERED;

/// Children of the directory of a lock that is in use, and of a semaphore's.
const BOTH: [&str; 2] = ["", LEASES];

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

impl Lines for ZooKeeperEntries {
    type Failure = Failure;
    type Key = Nodes;

    /// The holders of a lock and its waiters as the servers know them now, in the order of the queue.
    async fn line(&self, request: &InspectRequest) -> Result<Line<Nodes>, Failure> {
        let session = self.sessions.any(Operation::Inspect).await.map_err(Failure::Refused)?;
        let directory = self.directory(request.physical());
        let look = || async {
            match request.kind() {
                LockKind::Semaphore => self.line_for_permits(&session, &directory).await,
                _ => self.line_for_lock(&session, &directory).await,
            }
        };
        session.patiently(look).await
    }

    /// The directories of locks stay for a while when they are empty, and a semaphore's is that of the lock with its name.
    async fn list(&self) -> Result<Vec<InspectRequest>, Failure> {
        let session = self.sessions.any(Operation::Inspect).await.map_err(Failure::Refused)?;
        let look = || async {
            session.catch_up(&self.root).await?;
            let mut names = session.list(&self.root).await?;
            names.retain(|name| name != REMEMBERED);
            let mut found = Vec::new();
            for some in names.chunks(READ_TOGETHER) {
                let directories: Vec<_> = some.iter().map(|name| format!("{}/{name}", self.root)).collect();
                let all = match session.list_all(&directories).await {
                    // The inspection says of which lock.
                    Err(failure) if failure.is(&Error::NoAuth) => {
                        vec![BOTH.map(str::to_owned).to_vec(); some.len()]
                    }
                    all => all?,
                };
                found.extend(some.iter().zip(&all).flat_map(|(name, children)| in_use(name, children)));
            }
            Ok(found)
        };
        session.patiently(look).await
    }
}

/// Requests to inspect what is in use of the lock and the semaphore whose directory has these children.
fn in_use<'a>(name: &'a str, children: &'a [String]) -> impl Iterator<Item = InspectRequest> + 'a {
    let of_semaphore = |child: &String| [QUEUE, LEASES].contains(&child.as_str());
    let kinds = [(LockKind::Lock, false), (LockKind::Semaphore, true)].into_iter();
    let kinds = kinds.filter(move |(_, wanted)| children.iter().any(|child| of_semaphore(child) == *wanted));
    kinds.filter_map(move |(kind, _)| InspectRequest::found(name, kind).ok())
}

impl ZooKeeperEntries {
    async fn line_for_lock(&self, session: &Arc<Session>, directory: &str) -> Result<Line<Nodes>, Failure> {
        session.catch_up(directory).await?;
        let children = session.list(directory).await?;
        if let Some(name) = children.iter().find(|name| is_newer(name)) {
            return Err(Failure::Refused(newer(name)));
        }
        let contenders = in_order(session, directory, &children, self.recipe.accepted).await?;
        refuse_strangers(contenders.first(), &children, self.recipe.accepted)?;
        let nodes = |entrant: &Entrant| {
            (entrant.mode(), entrant.names().map(|name| format!("{directory}/{name}")).collect())
        };
        let line: Vec<_> = entrants(contenders).iter().map(nodes).collect();
        let mut entries = self.read_all(session, &line).await?;
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
        Ok(Line { holding, entries })
    }

    /// Reads what nodes say, each time the first of those of one holder or waiter; passes over those that have gone.
    pub(crate) async fn read_all(
        &self,
        session: &Arc<Session>,
        line: &[(Mode, Vec<String>)],
    ) -> Result<Vec<Shown<Nodes>>, Failure> {
        let mut all = Vec::with_capacity(line.len());
        for some in line.chunks(READ_TOGETHER) {
            let first: Vec<_> = some.iter().filter_map(|(_, paths)| paths.first().cloned()).collect();
            let found = session.read(&first).await?;
            for (((mode, paths), first), found) in some.iter().zip(&first).zip(&found) {
                let name = first.rsplit('/').next().unwrap_or_default();
                if let Some((participant, told)) = self.participant(name, *mode, found) {
                    let version = match found {
                        MultiReadResult::Data { stat, .. } => Some(stat.version),
                        _ => None,
                    };
                    let key = Nodes { session: Arc::clone(session), paths: paths.clone(), version };
                    all.push(Shown { participant, told, key });
                }
            }
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
