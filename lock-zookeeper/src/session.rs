//! One session with the servers: its requests, its heartbeat and its orphans.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use lock_core::spi::{Mutex, within};
use lock_core::{BackendContext, Clock, GroupId, LockError, Moment};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use zookeeper_client::{
    Client, Error, EventType, MultiReadResult, MultiWriteError, MultiWriteResult, Stat, WatchedEvent,
};

use crate::contender::DIGITS;
use crate::failure::{Failure, existing, unexpected};
use crate::orphan::Orphan;
use crate::session_liveness::{Acknowledged, Proof, SessionLiveness};

/// The contact of a session with the servers.
#[derive(Debug, Clone)]
pub(crate) enum Contact {
    Good,
    Lost(LockError),
    /// Over: everything that the session created is gone, or goes when the servers notice.
    Over,
}

/// One session. A hold never moves from one session to another.
pub(crate) struct Session {
    /// The group in which the core renews its holds.
    pub(crate) group: GroupId,
    /// Its id at the servers.
    pub(crate) number: i64,
    /// The timeout that the servers have agreed to.
    pub(crate) timeout: Duration,
    /// How long the servers may take for one answer.
    request_timeout: Duration,
    context: BackendContext,
    /// None when the session has ended. The library's client closes when its last pending request is answered.
    client: Mutex<Option<Arc<Client>>>,
    liveness: Mutex<SessionLiveness>,
    contact: watch::Sender<Contact>,
    /// The total length, in bytes, of the paths that it may have to name at once.
    load: AtomicUsize,
    /// Whether it contains a node that the servers do not let it remove.
    is_draining: AtomicBool,
    /// Removals of orphans that may run at once.
    removals: Semaphore,
}

#[derive(Clone, Copy)]
enum Look {
    AtData,
    AtChildren,
}

/// A node that is watched from now on.
pub(crate) struct Watched {
    /// The node's data when the watch was set; empty if the user may not read it.
    pub(crate) data: Vec<u8>,
    pub(crate) watching: Watching,
}

/// The watch over one node, until it reports something.
pub(crate) type Watching = Pin<Box<dyn Future<Output = News> + Send>>;

/// What a node's watch has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// Possibly changed: the client has to check again.
    Changed,
    Deleted,
    SessionOver,
}

impl News {
    fn of(event: &WatchedEvent) -> Self {
        match event.event_type {
            EventType::NodeDeleted => Self::Deleted,
            EventType::Session if event.session_state.is_terminated() => Self::SessionOver,
            _ => Self::Changed,
        }
    }
}

/// The pause between two checks of a node that the user may not read: servers report no events of such a node (since the fix of
/// CVE-2024-23944).
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How many removals of orphans run at once.
const REMOVED_TOGETHER: usize = 16;

/// How long the servers may take for what only its caller waits for, and no lease.
const PATIENCE: Duration = Duration::from_secs(10);

impl Session {
    /// `connecting` is the moment before the client asked for it.
    pub(crate) fn new(
        context: BackendContext,
        group: GroupId,
        client: Client,
        connecting: Moment,
        tick: Duration,
        request_timeout: Duration,
    ) -> Self {
        let timeout = client.session_timeout();
        let connecting = Acknowledged { sent: connecting, heard: context.clock().now() };
        Self {
            group,
            number: client.session_id().0,
            timeout,
            request_timeout,
            liveness: Mutex::new(SessionLiveness::new(connecting, timeout, tick)),
            context,
            client: Mutex::new(Some(Arc::new(client))),
            contact: watch::Sender::new(Contact::Good),
            load: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            removals: Semaphore::new(REMOVED_TOGETHER),
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.context.clock()
    }

    /// A turn to remove an orphan.
    pub(crate) async fn removal(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.removals.acquire().await.ok()
    }

    pub(crate) fn contact(&self) -> watch::Receiver<Contact> {
        self.contact.subscribe()
    }

    pub(crate) fn has_contact(&self) -> bool {
        matches!(*self.contact.borrow(), Contact::Good)
    }

    /// Whether the session is over, and with it everything that it created.
    pub(crate) fn is_over(&self) -> bool {
        matches!(*self.contact.borrow(), Contact::Over)
    }

    /// Records the contact. A session that is over stays over.
    pub(crate) fn set_contact(&self, contact: Contact) {
        self.contact.send_if_modified(|current| {
            let is_news =
                !matches!((&*current, &contact), (Contact::Over, _) | (Contact::Good, Contact::Good));
            if is_news {
                *current = contact;
            }
            is_news
        });
    }

    /// Ends the session: drops its client, which closes it.
    pub(crate) fn end(&self) {
        self.set_contact(Contact::Over);
        let client = self.client.lock().take();
        drop(client);
    }

    /// Waits for contact, for at most the request timeout.
    pub(crate) async fn reach(&self) {
        if !matches!(*self.contact.borrow(), Contact::Lost(_)) {
            return;
        }
        let mut contact = self.contact();
        let known = async { contact.wait_for(|contact| !matches!(contact, Contact::Lost(_))).await.is_ok() };
        let _ = self.in_time(known).await;
    }

    /// Waits until the session is over.
    pub(crate) async fn ended(&self) {
        let mut contact = self.contact();
        // The sender lives as long as this session.
        let _ = contact.wait_for(|contact| matches!(contact, Contact::Over)).await;
    }

    /// The output of `future` if it completes within the request timeout.
    pub(crate) async fn in_time<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        within(self.clock(), self.clock().now().plus(self.request_timeout), future).await
    }

    /// Repeats what busy servers have not answered in time. Only for what may be done twice.
    pub(crate) async fn patiently<T, F>(&self, mut operation: impl FnMut() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let give_up = self.clock().now().plus(PATIENCE);
        loop {
            match operation().await {
                Err(Failure::Silence) if self.clock().now() < give_up => {}
                answered => return answered,
            }
        }
    }

    /// The client to send requests with. Fails without contact, because the client library would keep the requests and send them
    /// when their callers are gone.
    fn client(&self) -> Result<Arc<Client>, Failure> {
        if let Contact::Lost(error) = &*self.contact.borrow() {
            return Err(Failure::Unsent(error.clone()));
        }
        self.client.lock().clone().ok_or(Failure::Told(Error::ClientClosed))
    }

    /// Reports changes of the client library's state.
    pub(crate) fn state_watcher(&self) -> Option<zookeeper_client::StateWatcher> {
        self.client.lock().as_ref().map(|client| client.state_watcher())
    }

    fn acknowledged(&self, sent: Moment, proof: Proof) {
        let request = Acknowledged { sent, heard: self.clock().now() };
        self.liveness.lock().acknowledged(request, proof);
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn ask<T, E, F>(
        &self,
        proof: Proof,
        request: impl FnOnce(Arc<Client>) -> F,
    ) -> Result<T, Failure>
    where
        E: Into<Failure>,
        F: Future<Output = Result<T, E>>,
    {
        let client = self.client()?;
        let sent = self.clock().now();
        let answer = self.in_time(request(client)).await.ok_or(Failure::Silence)?;
        let answer = answer.map_err(Into::into)?;
        self.acknowledged(sent, proof);
        Ok(answer)
    }

    /// Makes changes, all of them or none. A failure comes with the index of the change that it is about.
    pub(crate) async fn change(
        &self,
        changes: impl FnOnce(&mut zookeeper_client::MultiWriter<'_>) -> Result<(), Error>,
    ) -> Result<Vec<MultiWriteResult>, (usize, Failure)> {
        let request = |client: Arc<Client>| async move {
            let committing = {
                let mut writer = client.new_multi_writer();
                changes(&mut writer)?;
                writer.commit()
            };
            committing.await
        };
        let client = self.client().map_err(|failure| (0, failure))?;
        let sent = self.clock().now();
        match self.in_time(request(client)).await {
            Some(Ok(results)) => {
                self.acknowledged(sent, Proof::Committed);
                Ok(results)
            }
            Some(Err(MultiWriteError::OperationFailed { index, source })) => {
                if !matches!(source, Error::SessionMoved | Error::SessionExpired) {
                    // A transaction that fails is also committed, as a failed one.
                    self.acknowledged(sent, Proof::Committed);
                }
                Err((index, source.into()))
            }
            Some(Err(MultiWriteError::RequestFailed { source })) => Err((0, source.into())),
            None => Err((0, Failure::Silence)),
        }
    }

    /// The stat of a node if the node exists.
    pub(crate) async fn stat(&self, path: &str) -> Result<Option<Stat>, Failure> {
        self.ask(Proof::Answered, |client| async move { client.check_stat(path).await }).await
    }

    /// The children of a directory; empty if the directory does not exist.
    pub(crate) async fn list(&self, directory: &str) -> Result<Vec<String>, Failure> {
        let listed =
            self.ask(Proof::Answered, |client| async move { client.list_children(directory).await }).await;
        Ok(existing(listed)?.unwrap_or_default())
    }

    /// The children of a directory, which is watched for changes of them from now on; none if the directory does not exist.
    pub(crate) async fn list_and_watch(
        &self,
        directory: &str,
    ) -> Result<Option<(Vec<String>, Watching)>, Failure> {
        let list = |client: Arc<Client>| async move { client.list_and_watch_children(directory).await };
        let listed = existing(self.ask(Proof::Answered, list).await)?;
        Ok(listed.map(|(children, watcher)| {
            let watching: Watching = Box::pin(async move { News::of(&watcher.changed().await) });
            (children, watching)
        }))
    }

    /// The children of several directories, all at the same moment. Those that do not exist have none.
    pub(crate) async fn list_all(
        &self,
        directories: &[String],
    ) -> Result<Vec<Result<Vec<String>, Failure>>, Failure> {
        let children = |result| match result {
            MultiReadResult::Children { children } => Ok(children),
            MultiReadResult::Error { err: Error::NoNode } => Ok(Vec::new()),
            MultiReadResult::Error { err } => Err(Failure::Told(err)),
            _ => Err(unexpected()),
        };
        Ok(self.look(directories, Look::AtChildren).await?.into_iter().map(children).collect())
    }

    /// Waits until the servers have carried out everything that this session has sent so far, whichever server it was sent through.
    ///
    /// The barrier is a transaction that changes nothing: the leader orders it behind whatever it has proposed, and refuses what
    /// arrives later from a connection that the session has left. `sync` would not do: a deposed leader answers it, and then lists
    /// what it knew before.
    pub(crate) async fn barrier(&self, path: &str) -> Result<(), Failure> {
        existing(self.beat(path).await).map(drop)
    }

    /// Waits until the server has normally seen everything that was committed at the time of the request. For inspecting locks.
    pub(crate) async fn catch_up(&self, path: &str) -> Result<(), Failure> {
        self.ask(Proof::Answered, |client| async move { client.sync(path).await }).await
    }

    /// Reads nodes, all at the same moment.
    pub(crate) async fn read(&self, paths: &[String]) -> Result<Vec<MultiReadResult>, Failure> {
        self.look(paths, Look::AtData).await
    }

    /// Which of these nodes exist, all at the same moment. A node that the user may not check counts as existing.
    ///
    /// It asks for their children, because such nodes have none, which costs the server least.
    pub(crate) async fn which_are_there(&self, paths: &[String]) -> Result<Vec<bool>, Failure> {
        let found = self.look(paths, Look::AtChildren).await?;
        let is_gone =
            |result: &MultiReadResult| matches!(result, MultiReadResult::Error { err: Error::NoNode });
        Ok(found.iter().map(|result| !is_gone(result)).collect())
    }

    async fn look(&self, paths: &[String], look: Look) -> Result<Vec<MultiReadResult>, Failure> {
        let read = self.ask(Proof::Answered, |client| async move {
            let reading = {
                let mut reader = client.new_multi_reader();
                for path in paths {
                    match look {
                        Look::AtData => reader.add_get_data(path)?,
                        Look::AtChildren => reader.add_get_children(path)?,
                    }
                }
                reader.commit()
            };
            reading.await
        });
        let read = read.await?;
        if read.len() == paths.len() { Ok(read) } else { Err(unexpected()) }
    }

    /// Deletes a node, with a version only if its data has that. Returns whether it existed.
    pub(crate) async fn delete(&self, path: &str, version: Option<i32>) -> Result<bool, Failure> {
        let deleted =
            self.ask(Proof::Committed, |client| async move { client.delete(path, version).await }).await;
        Ok(existing(deleted)?.is_some())
    }

    /// Deletes nodes, in one transaction if there are several. Returns whether all of them existed; if not, it deletes the others. With
    /// a version it deletes nothing if the first one's data has another.
    pub(crate) async fn delete_all(&self, paths: &[String], version: Option<i32>) -> Result<bool, Failure> {
        if let [path] = paths {
            return self.delete(path, version).await;
        }
        let nodes = || paths.iter().zip(std::iter::once(version).chain(std::iter::repeat(None)));
        let delete = |writer: &mut zookeeper_client::MultiWriter<'_>| {
            nodes().try_for_each(|(path, version)| writer.add_delete(path, version))
        };
        match self.change(delete).await {
            Ok(_) => Ok(true),
            Err((_, failure)) if failure.is(&Error::NoNode) => {
                for (path, version) in nodes() {
                    self.delete(path, version).await?;
                }
                Ok(false)
            }
            Err((_, failure)) => Err(failure),
        }
    }

    /// Watches several nodes like one: for the first event of any; none if one of them is missing. The data is that of the first.
    pub(crate) async fn watch_all(&self, paths: &[String]) -> Result<Option<Watched>, Failure> {
        let all = join_all(paths.iter().map(|path| self.watch(path))).await;
        let Some(all) = all.into_iter().collect::<Result<Option<Vec<_>>, _>>()? else { return Ok(None) };
        let (data, watchings): (Vec<_>, Vec<_>) =
            all.into_iter().map(|watched| (watched.data, watched.watching)).unzip();
        let any = async { select_all(watchings).await.0 };
        Ok(data.into_iter().next().map(|data| Watched { data, watching: Box::pin(any) }))
    }

    /// Watches a node for its deletion and for changes of its data; none if there is no such node.
    ///
    /// It does not use `exists`: a watch for a node that is gone would stay at the server for ever.
    pub(crate) async fn watch(&self, path: &str) -> Result<Option<Watched>, Failure> {
        let read = |client: Arc<Client>| async move { client.get_and_watch_data(path).await };
        match self.ask(Proof::Answered, read).await {
            Ok((data, _, watcher)) => {
                let watching = async move { News::of(&watcher.changed().await) };
                Ok(Some(Watched { data, watching: Box::pin(watching) }))
            }
            Err(failure) if failure.is(&Error::NoNode) => Ok(None),
            Err(failure) if failure.is(&Error::NoAuth) => {
                let clock = self.clock().clone();
                let watching = async move {
                    clock.sleep_until(clock.now().plus(LOOK_AGAIN)).await;
                    News::Changed
                };
                let watched = Watched { data: Vec::new(), watching: Box::pin(watching) };
                Ok(self.stat(path).await?.map(|_| watched))
            }
            Err(failure) => Err(failure),
        }
    }

    /// The heartbeat: checks that the node exists, by a request that the leader commits in this session.
    ///
    /// A transaction that changes nothing is committed like any other. `sync` would not do: a deposed leader answers it.
    pub(crate) async fn beat(&self, path: &str) -> Result<(), Failure> {
        match self.change(|writer| writer.add_check_version(path, -1)).await {
            Ok(_) => Ok(()),
            // The servers answer this only for a node that exists.
            Err((_, failure)) if failure.is(&Error::NoAuth) => Ok(()),
            Err((_, failure)) => Err(failure),
        }
    }

    /// The moment from which the core may count the term of a hold in this session.
    pub(crate) fn anchor(&self) -> Moment {
        self.liveness.lock().anchor()
    }

    /// When another heartbeat would prove more than the last one, if it would.
    pub(crate) fn worth_repeating_at(&self) -> Option<Moment> {
        self.liveness.lock().worth_repeating_at()
    }

    /// When the client sent the last request that has been answered.
    pub(crate) fn last_answer(&self) -> Moment {
        self.liveness.lock().last_answer()
    }

    /// How long a hold is valid from its anchor.
    pub(crate) fn term(&self) -> Duration {
        term(self.timeout)
    }

    /// Whether it has no nodes, and none are about to be created.
    pub(crate) fn is_empty(&self) -> bool {
        self.load.load(Ordering::Acquire) == 0
    }

    /// Whether no more nodes may be created in it. When the last of its other nodes is gone, the session ends, and with it the
    /// nodes that it could not remove.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
    }

    /// Reserves space for so many paths of this length, if there is some.
    pub(crate) fn reserve(self: &Arc<Self>, path: usize, paths: usize) -> Option<Reservation> {
        let cost = paths * path;
        let room = |load: usize| (load + cost <= MOST_BYTES || load == 0).then_some(load + cost);
        let seated =
            !self.is_draining() && self.load.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).is_ok();
        seated.then(|| Reservation { session: Arc::clone(self), cost: path, paths: AtomicUsize::new(paths) })
    }

    /// Hands over an orphan that nothing else will remove.
    pub(crate) fn leave(self: &Arc<Self>, orphan: Orphan) {
        let session = Arc::clone(self);
        // Each in a task of its own: one that cannot be removed delays no other.
        self.context.spawn(async move {
            tokio::select! {
                () = orphan.remove_for_certain(&session) => {}
                () = session.ended() => {}
            }
        });
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Session({:#x}, {:?})", self.number, *self.contact.borrow())
    }
}

/// The limit, in bytes, for all paths that one session may have to name at once.
///
/// After a loss of contact the client library names all nodes that are watched. If they exceed 128 KiB it uses several requests,
/// then misreads the second answer and never regains contact. And when a session ends, the servers write the paths of all
/// its nodes into one transaction, which may not be longer than `jute.maxbuffer` (1 MiB; ZOOKEEPER-4306).
pub(crate) const MOST_BYTES: usize = 120 * 1024;

/// The length of the longest path of these nodes, whose names lack their numbers yet.
pub(crate) fn longest_path(directory: &str, names: &[String]) -> usize {
    directory.len() + 1 + names.iter().map(String::len).max().unwrap_or(0) + DIGITS
}

/// The space of an attempt's nodes in a session, and of what they wait for.
#[derive(Debug)]
pub(crate) struct Reservation {
    session: Arc<Session>,
    /// The bytes of one path.
    cost: usize,
    /// How many paths it counts for: none when the nodes are gone.
    paths: AtomicUsize,
}

impl Reservation {
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// A reservation for nodes that this one has reserved space for.
    pub(crate) fn beside(&self) -> Self {
        Self { session: Arc::clone(&self.session), cost: 0, paths: AtomicUsize::new(0) }
    }

    /// The nodes are gone, or the session removes them.
    pub(crate) fn give_back(&self) {
        self.keep_at_most(0);
    }

    /// Gives back the space of all paths but so many.
    pub(crate) fn keep_at_most(&self, paths: usize) {
        let taken = self.paths.fetch_min(paths, Ordering::AcqRel);
        self.session.load.fetch_sub(taken.saturating_sub(paths) * self.cost, Ordering::AcqRel);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// How long a hold lasts from its anchor, in a session with this timeout.
pub(crate) fn term(timeout: Duration) -> Duration {
    timeout * 2 / 3
}
