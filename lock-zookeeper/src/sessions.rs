//! The sessions of a client: opens them, watches over them, and replaces those that have ended.
//!
//! One session is normally enough. But a client could not keep a session with very many nodes, and the end of such a session would
//! endanger the servers (see [`Session::reserve`]). So the client opens further sessions when the others are full, and closes them
//! when they have nothing left to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_core::spi::{Mutex, within};
use lock_core::{BackendContext, Backoff, ErrorKind, GroupId, LockError, LossReason, Operation};
use lock_entries::Failed;
use tokio::sync::watch;
use zookeeper_client::SessionState;

use crate::failure::Failure;
use crate::options::ZooKeeperOptions;
use crate::session::{Contact, Reservation, Session, term};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long closing a client waits for the end of its sessions.
const TIME_TO_CLOSE: Duration = Duration::from_millis(900);

/// After this many timeouts of silence a session counts as over, even if the client library has not said so.
const SILENT_TIMEOUTS: u32 = 2;

/// For how many timeouts a further session may be without nodes before the client closes it.
const IDLE_TIMEOUTS: u32 = 6;

/// How many signs of life the client asks of the servers in one session timeout.
pub(crate) const BEATS_IN_A_TIMEOUT: u32 = 6;

#[derive(Debug)]
pub(crate) struct Sessions {
    context: BackendContext,
    options: ZooKeeperOptions,
    pool: Mutex<Pool>,
    changed: watch::Sender<()>,
    next_group: AtomicU64,
    has_warned: AtomicBool,
}

#[derive(Debug, Default)]
struct Pool {
    members: Vec<Member>,
    is_closing: bool,
}

/// The place of a session, and of the sessions that replace it when it ends.
#[derive(Debug)]
struct Member {
    number: u64,
    state: MemberState,
}

#[derive(Debug)]
enum MemberState {
    /// For the first time, or after the end of the previous session.
    Opening,
    /// It could not be opened, for this reason; the client tries again.
    Failed(LockError),
    Open(Arc<Session>),
}

impl Member {
    fn session(&self) -> Option<&Arc<Session>> {
        match &self.state {
            MemberState::Open(session) => Some(session),
            MemberState::Opening | MemberState::Failed(_) => None,
        }
    }
}

/// The number of the member whose session the client never closes.
const FIRST: u64 = 0;

impl Sessions {
    /// Opens the first session, and keeps a session open from then on.
    pub(crate) async fn start(
        context: BackendContext,
        options: ZooKeeperOptions,
    ) -> Result<Arc<Self>, LockError> {
        let sessions = Arc::new(Self {
            context,
            options,
            pool: Mutex::default(),
            changed: watch::Sender::new(()),
            next_group: AtomicU64::new(0),
            has_warned: AtomicBool::new(false),
        });
        let session = sessions.open().await?;
        let first = Member { number: FIRST, state: MemberState::Open(Arc::clone(&session)) };
        sessions.pool.lock().members.push(first);
        sessions.context.spawn(Arc::clone(&sessions).keep(FIRST, Some(session)));
        Ok(sessions)
    }

    /// Reserves space for so many paths of this length, in a session that has some.
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        path: usize,
        paths: usize,
        operation: Operation,
    ) -> Result<Reservation, LockError> {
        self.until_found(operation, || self.search(path, paths, operation)).await
    }

    /// Looks until there is an outcome, whenever a session has changed.
    async fn until_found<T>(
        &self,
        operation: Operation,
        find: impl Fn() -> Option<Result<T, LockError>>,
    ) -> Result<T, LockError> {
        // Mostly there is nothing to wait for.
        if let Some(found) = find() {
            return found;
        }
        let mut changed = self.changed.subscribe();
        let give_up = self.context.clock().now().plus(self.options.request_timeout());
        loop {
            if let Some(found) = find() {
                return found;
            }
            if within(self.context.clock(), give_up, changed.changed()).await.is_none() {
                return Err(Failure::Silence.explain(operation));
            }
        }
    }

    /// None while the client is opening a session.
    fn search(
        self: &Arc<Self>,
        path: usize,
        paths: usize,
        operation: Operation,
    ) -> Option<Result<Reservation, LockError>> {
        let mut pool = self.pool.lock();
        if pool.is_closing {
            return Some(Err(closed(operation)));
        }
        let (mut is_opening, mut failed) = (false, None);
        for member in &pool.members {
            match &member.state {
                MemberState::Open(session) => {
                    if let Some(reservation) = session.reserve(path, paths) {
                        return Some(Ok(reservation));
                    }
                }
                MemberState::Opening => is_opening = true,
                MemberState::Failed(error) => failed = failed.or(Some(error)),
            }
        }
        if is_opening {
            return None;
        }
        if let Some(error) = failed {
            return Some(Err(error.clone().during(operation)));
        }
        let number = pool.members.iter().map(|member| member.number).max().map_or(FIRST, |most| most + 1);
        pool.members.push(Member { number, state: MemberState::Opening });
        self.context.spawn(Arc::clone(self).keep(number, None));
        None
    }

    /// Any session, to inspect locks with; preferably one that has contact.
    pub(crate) async fn any(&self, operation: Operation) -> Result<Arc<Session>, LockError> {
        self.until_found(operation, || self.find_any(operation)).await
    }

    /// None while the client is opening a session.
    fn find_any(&self, operation: Operation) -> Option<Result<Arc<Session>, LockError>> {
        let pool = self.pool.lock();
        if pool.is_closing {
            return Some(Err(closed(operation)));
        }
        let open = || pool.members.iter().filter_map(Member::session);
        let failed = pool.members.iter().find_map(|member| match &member.state {
            MemberState::Failed(error) => Some(error.clone().during(operation)),
            _ => None,
        });
        let session = open().find(|session| session.has_contact()).or_else(|| open().next());
        session.map(|session| Ok(Arc::clone(session))).or_else(|| failed.map(Err))
    }

    /// The session of this group, as long as it exists.
    pub(crate) fn of_group(&self, group: GroupId) -> Option<Arc<Session>> {
        let pool = self.pool.lock();
        pool.members.iter().filter_map(Member::session).find(|session| session.group == group).cloned()
    }

    /// Sets the state of a member. Returns whether the member still exists.
    fn set(&self, number: u64, state: MemberState) -> bool {
        let previous = {
            let mut pool = self.pool.lock();
            let member = pool.members.iter_mut().find(|member| member.number == number);
            member.map(|member| std::mem::replace(&mut member.state, state))
        };
        // Outside of the mutex: dropping the session may drop its client.
        let is_there = previous.is_some();
        drop(previous);
        self.changed.send_replace(());
        is_there
    }

    fn is_closing(&self) -> bool {
        self.pool.lock().is_closing
    }

    /// Opens the sessions of one member, one after the other.
    async fn keep(self: Arc<Self>, number: u64, first: Option<Arc<Session>>) {
        let clock = self.context.clock();
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut told = String::new();
        let mut next = first;
        while !self.is_closing() {
            let session = match next.take() {
                Some(session) => session,
                None => match self.open().await {
                    Ok(session) => session,
                    Err(error) => {
                        let reason = error.to_string();
                        if reason != told {
                            tracing::warn!(target: "distlock", servers = %self.options.hosts, %error, "no session yet");
                            told = reason;
                        }
                        self.set(number, MemberState::Failed(error));
                        clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
                        continue;
                    }
                },
            };
            let opened = clock.now();
            told.clear();
            if !self.set(number, MemberState::Open(Arc::clone(&session))) {
                session.end();
                return;
            }
            let ended = self.watch_over(number, &session).await;
            if ended == Ended::Over {
                // Before the servers learn of the end and give the locks to other clients.
                self.context.group_lost(session.group, LossReason::SessionClosed);
            }
            session.end();
            if ended == Ended::Retired || self.is_closing() {
                return;
            }
            self.set(number, MemberState::Opening);
            tracing::warn!(target: "distlock", servers = %self.options.hosts, session = format_args!("{:#x}", session.number), "the session has ended");
            if clock.now().since(opened) > LONGEST_PAUSE {
                backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
            } else {
                // It ended as soon as the client used it, and the next one may do the same.
                clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
            }
        }
    }

    async fn open(&self) -> Result<Arc<Session>, LockError> {
        let clock = self.context.clock();
        let connecting = clock.now();
        let patience = connecting.plus(self.options.session_timeout);
        let opened = within(clock, patience, self.options.open(&self.context)).await;
        let client = opened.unwrap_or_else(|| Err(Failure::Silence.explain(Operation::Connect)))?;
        let timeout = client.session_timeout();
        self.check_timeout(timeout)?;
        let group = GroupId::new(self.next_group.fetch_add(1, Ordering::Relaxed));
        let tick = longest_tick(self.options.session_timeout, timeout);
        let request_timeout = request_timeout(timeout, self.context.renewal_interval(term(timeout))?);
        let context = self.context.clone();
        Ok(Arc::new(Session::new(context, group, client, connecting, tick, request_timeout)))
    }

    /// Refuses a timeout that leaves no time to renew, and warns if the servers have negotiated another one than this client asked
    /// for.
    fn check_timeout(&self, timeout: Duration) -> Result<(), LockError> {
        let asked = self.options.session_timeout;
        self.context.check_lease(term(timeout)).map_err(|error| {
            LockError::new(ErrorKind::InvalidOption, Operation::Connect)
                .because(format!(
                    "the servers end a session after {timeout:?} without a sign of life (asked for: {asked:?}), and of that a hold \
                     can rely on two thirds"
                ))
                .remedy("make session_timeout longer, or the abort margin (for the command: --grace) shorter")
                .caused_by(error)
        })?;
        if timeout != asked && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "distlock",
                servers = %self.options.hosts, ?asked, negotiated = ?timeout,
                "the servers have agreed to another session timeout: see minSessionTimeout and maxSessionTimeout"
            );
        }
        Ok(())
    }

    async fn watch_over(&self, number: u64, session: &Session) -> Ended {
        tokio::select! {
            biased;
            () = self.follow(session) => Ended::Over,
            ended = self.keep_alive(number, session) => ended,
        }
    }

    /// Reports every change of contact to the session and its holds until the session is over.
    async fn follow(&self, session: &Session) {
        let Some(mut states) = session.state_watcher() else { return };
        let mut state = states.peek_state();
        let mut is_first = true;
        loop {
            match state {
                SessionState::SyncConnected | SessionState::ConnectedReadOnly => {
                    session.set_contact(Contact::Good);
                    // Also if the loss was too short to be reported.
                    if !is_first {
                        tracing::info!(target: "distlock", servers = %self.options.hosts, "contact restored");
                        self.context.group_restored(session.group);
                    }
                }
                SessionState::Disconnected => {
                    let lost =
                        Failure::Told(zookeeper_client::Error::ConnectionLoss).explain(Operation::Connect);
                    session.set_contact(Contact::Lost(lost));
                    tracing::warn!(target: "distlock", servers = %self.options.hosts, "contact lost");
                    self.context.group_suspect(session.group);
                }
                SessionState::AuthFailed | SessionState::Expired | SessionState::Closed => return,
            }
            is_first = false;
            state = states.changed().await;
        }
    }

    /// Asks the servers for a sign of life while no other request does. Returns when the session is no longer of use.
    ///
    /// A heartbeat proves how long the session lives only together with requests that were answered earlier, so a session without
    /// nodes needs this too. Heartbeats for holds make it unnecessary, and the client library sends correspondingly fewer pings.
    async fn keep_alive(&self, number: u64, session: &Session) -> Ended {
        let clock = self.context.clock();
        let interval = session.timeout / BEATS_IN_A_TIMEOUT;
        let (mut empty_since, mut failing_since) = (None, None);
        loop {
            // A little later than the next heartbeat, if there is one.
            let due = session.last_answer().plus(interval + interval / 4);
            clock.sleep_until(due.max(clock.now().plus(interval / 4))).await;
            let now = clock.now();
            if !session.is_empty() {
                empty_since = None;
            } else if session.is_draining() {
                return Ended::Over;
            } else if now.since(*empty_since.get_or_insert(now)) > session.timeout * IDLE_TIMEOUTS
                && self.retire(number)
            {
                return Ended::Retired;
            }
            if now.since(session.last_answer()) < interval {
                failing_since = None;
                continue;
            }
            if session.stat(&self.options.root).await.is_ok() {
                failing_since = None;
            } else if now.since(*failing_since.get_or_insert(now)) > session.timeout * SILENT_TIMEOUTS {
                return Ended::Over;
            }
        }
    }

    /// Gives up a further session without nodes. Returns whether it did.
    fn retire(&self, number: u64) -> bool {
        if number == FIRST {
            return false;
        }
        let mut pool = self.pool.lock();
        let position = pool.members.iter().position(|member| {
            member.number == number && member.session().is_some_and(|session| session.is_empty())
        });
        let retired = position.map(|position| pool.members.remove(position));
        drop(pool);
        retired.is_some()
    }

    /// Ends all sessions, and waits until the servers know.
    pub(crate) async fn close(&self) {
        let members = {
            let mut pool = self.pool.lock();
            pool.is_closing = true;
            std::mem::take(&mut pool.members)
        };
        self.changed.send_replace(());
        let give_up = self.context.clock().now().plus(TIME_TO_CLOSE);
        for member in members {
            let Some(session) = member.session() else { continue };
            let Some(mut states) = session.state_watcher() else { continue };
            session.end();
            let closed = async {
                while !states.peek_state().is_terminated() {
                    states.changed().await;
                }
            };
            let _ = within(self.context.clock(), give_up, closed).await;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Over,
    /// It had no nodes left, and its member is gone.
    Retired,
}

/// The longest possible tick of the servers. The servers do not tell it; sessions have to last at least four ticks. If they insist
/// on a longer session than the client asked for, that is their shortest one, which is two ticks unless configured otherwise.
fn longest_tick(asked: Duration, negotiated: Duration) -> Duration {
    if negotiated > asked { negotiated / 2 } else { negotiated / 4 }
}

/// How long the servers may take for an answer: a third of the session, and less than the interval in which a renewal must
/// succeed.
pub(crate) fn request_timeout(timeout: Duration, interval: Duration) -> Duration {
    (timeout / 3).min(interval * 3 / 4)
}

fn closed(operation: Operation) -> LockError {
    LockError::new(ErrorKind::Closed, operation).remedy("make a new client")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_client_says_so_once() {
        let text = closed(Operation::Acquire).to_string();
        assert_eq!(text.matches("the client is closed").count(), 1, "{text}");
    }

    #[test]
    fn where_the_servers_raise_the_timeout_a_tick_may_be_half_of_it() {
        let seconds = Duration::from_secs;
        assert_eq!(longest_tick(seconds(12), seconds(12)), seconds(3));
        assert_eq!(longest_tick(seconds(60), seconds(40)), seconds(10));
        assert_eq!(longest_tick(seconds(1), seconds(4)), seconds(2));
    }
}
