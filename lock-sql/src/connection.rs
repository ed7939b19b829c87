//! What the task that owns a connection has, whatever dialect it speaks: it alone sends statements on it and receives the answers.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{LockError, LossReason, Moment, Operation, Sleep};

use crate::dialect::Dialect;
use crate::failure::{Failure, blocked};
use crate::link::{Command, Link, LinkState, Mailbox};
use crate::pool::Pool;
use crate::session::{Answer, Session};
use crate::settings::Settings;
use crate::task::Held;

/// How long the server has to cancel a statement. After that the client drops the connection, and ends the session from another.
const CANCELLATION_TIMEOUT: Duration = Duration::from_millis(400);

/// The pause before the client cancels a statement again: the first time, it may not have begun yet.
const CANCEL_AGAIN: Duration = Duration::from_millis(50);

/// The connection is no longer usable.
#[derive(Debug)]
pub struct Broken(pub LockError);

/// What has to happen before a connection ends, even if the runtime ends or the task panics: the server frees the locks as soon as
/// the connection is closed.
struct Ending<D: Dialect> {
    pool: Arc<Pool<D>>,
    link: Arc<Link<D>>,
}

impl<D: Dialect> Drop for Ending<D> {
    fn drop(&mut self) {
        if self.link.has_ended() {
            return;
        }
        let server = self.pool.server();
        self.link.reaches(LinkState::Ended);
        server.settings.context.group_lost(self.link.group, LossReason::ConnectionLost);
        self.pool.remove(self.link.group);
        // The server frees the locks as soon as it notices; the control connection makes sure that it does.
        server.control.terminate(Arc::clone(&self.link));
    }
}

/// A connection, for the task that owns it. A statement is abandoned only together with it.
pub struct Connection<D: Dialect> {
    pub(crate) pool: Arc<Pool<D>>,
    /// The connection, for other tasks.
    pub(crate) link: Arc<Link<D>>,
    /// The settings of the client.
    pub settings: Arc<Settings<D>>,
    /// Before the session, so that it is dropped first.
    ending: Ending<D>,
    /// The session at the server.
    pub session: Session<D>,
    /// What attempts have on this connection, or may have.
    pub held: HashMap<D::Key, Held<D::Has>>,
    /// The moment just before the last answered statement was sent.
    pub heard: Moment,
    /// Rings when the connection may have been unused for long. It is set again only then: an alarm for each command would have to be
    /// set and cancelled each time.
    may_be_idle: Sleep,
}

impl<D: Dialect> Connection<D> {
    /// Creates it for an opened session.
    pub(crate) fn new(pool: Arc<Pool<D>>, link: Arc<Link<D>>, session: Session<D>) -> Self {
        let settings = Arc::clone(&pool.server().settings);
        let heard = settings.clock().now();
        let may_be_idle = settings.clock().sleep_until(heard.plus(settings.longest_idle()));
        let ending = Ending { pool: Arc::clone(&pool), link: Arc::clone(&link) };
        Self { pool, link, settings, ending, session, held: HashMap::new(), heard, may_be_idle }
    }

    /// Returns the time.
    pub fn now(&self) -> Moment {
        self.settings.clock().now()
    }

    /// Returns the next command; `None` after so long without one that the pool has dropped the connection.
    ///
    /// # Cancel safety
    /// No command is lost.
    pub(crate) async fn next(&mut self, mailbox: &mut Mailbox<D>) -> Option<Command<D>> {
        let longest_idle = self.settings.longest_idle();
        loop {
            if !self.held.is_empty() {
                return mailbox.next().await;
            }
            // It gets no attempt any more.
            if self.link.is_doubtful() && self.pool.retire(self.link.group) {
                return None;
            }
            tokio::select! {
                biased;
                command = mailbox.next() => return command,
                () = &mut self.may_be_idle => {}
            }
            let mut idle_until = self.heard.plus(longest_idle);
            if idle_until <= self.now() {
                if self.pool.retire(self.link.group) {
                    return None;
                }
                idle_until = self.now().plus(longest_idle);
            }
            self.may_be_idle = self.settings.clock().sleep_until(idle_until);
        }
    }

    /// Records that a command was carried out.
    pub(crate) fn has_carried_out_one(&self) {
        self.link.has_carried_out_one();
        self.pool.progresses();
    }

    /// Closes the connection when nothing on it is held, or still matters.
    ///
    /// # Cancel safety
    /// Dropping the future drops the connection.
    pub(crate) async fn retire(self) {
        self.link.reaches(LinkState::Ended);
        self.pool.remove(self.link.group);
        self.session.close(self.settings.clock()).await;
        self.link.reaches(LinkState::Terminated);
    }

    /// Gives the connection up, and what is held on it.
    pub(crate) fn die(self, error: &LockError) {
        let Self { link, ending, session, held, .. } = self;
        if held.is_empty() {
            tracing::debug!(target: "distlock", session = %link.session, %error, "a connection has ended");
        } else {
            let locks = held.len();
            tracing::warn!(target: "distlock", session = %link.session, locks, %error, "a connection has ended, and its locks with it");
        }
        drop(ending);
        drop(session);
    }

    /// Until when an answer counts that would usually have to come by then. Without holds on this connection, until then. Otherwise
    /// until the holds may end at the server, because dropping the connection would lose all of them.
    fn deadline(&self, usual: Moment) -> Moment {
        if self.held.is_empty() { usual } else { usual.max(self.heard.plus(self.settings.server.lease)) }
    }

    /// Carries out a statement that does not wait.
    ///
    /// # Errors
    /// The failure; the connection is broken if the server did not answer in time.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, the connection is no longer usable.
    pub async fn ask(&mut self, operation: Operation, statement: String) -> Result<Answer, Failure> {
        let sent = self.now();
        let deadline = self.deadline(sent.plus(self.settings.request_timeout));
        self.link.is_asking(sent);
        let answer = within(self.settings.clock(), deadline, self.session.ask(operation, statement)).await;
        self.link.has_asked(self.now());
        let answer = answer.unwrap_or_else(|| Err(Failure::silence(operation)));
        self.hears(sent, &answer);
        answer
    }

    fn hears(&mut self, sent: Moment, answer: &Result<Answer, Failure>) {
        if !matches!(answer, Err(Failure::Broken(_))) {
            self.heard = sent;
        }
    }

    /// Waits for the server's answer. If its caller has gone, it cancels the statement. Then the server must answer both before the
    /// connection is used so again, because a late cancellation hits whatever runs at that time: of a commit that waits for a standby,
    /// the answer does not say so. Checks and releases show it, and so the connection keeps its holds.
    ///
    /// # Errors
    /// The failure; the connection is broken if the server did not answer in time.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, the connection is no longer usable.
    pub async fn ask_until(
        &mut self,
        stop: impl Future<Output = ()>,
        statement: String,
    ) -> Result<Answer, Failure> {
        if !self.link.is_doubtful() {
            let sent = self.now();
            let answer = self.answer_or_stop(stop, statement).await;
            self.hears(sent, &answer);
            if !self.link.is_doubtful() || matches!(answer, Err(Failure::Broken(_))) {
                return answer;
            }
        }
        let is_free = self.held.is_empty();
        Err(if is_free {
            Failure::silence(Operation::Cancel)
        } else {
            Failure::refusal(blocked(Operation::Acquire))
        })
    }

    async fn answer_or_stop(
        &mut self,
        stop: impl Future<Output = ()>,
        statement: String,
    ) -> Result<Answer, Failure> {
        let usual = |clock: &lock_core::Clock| clock.now().plus(CANCELLATION_TIMEOUT);
        let (is_free, lease_over) = (self.held.is_empty(), self.heard.plus(self.settings.server.lease));
        let (clock, control, id) =
            (self.settings.clock(), &self.pool.server().control, self.session.id.clone());
        let mut asking = pin!(self.session.ask(Operation::Acquire, statement));
        tokio::select! {
            biased;
            answer = &mut asking => return answer,
            () = stop => {}
        }
        let deadline = if is_free { usual(clock) } else { usual(clock).max(lease_over) };
        let cancelled = async {
            loop {
                // If that fails, it is tried again: without holds for a moment, with holds for as long as they may live.
                if !control.cancel(&id).await {
                    self.link.becomes_doubtful();
                }
                let again = clock.now().plus(CANCEL_AGAIN);
                if let Some(answer) = within(clock, again, asking.as_mut()).await {
                    return answer;
                }
            }
        };
        within(clock, deadline, cancelled).await.unwrap_or_else(|| Err(Failure::silence(Operation::Cancel)))
    }

    /// Carries out a statement that others may block, for many reasons, while the checks of the holds on this connection wait
    /// behind it. So it has a limit of its own, and is cancelled then.
    ///
    /// # Errors
    /// The failure; that of a [blocked] statement if it was cancelled, also when it was done all the same: a write that waited for a
    /// standby is done at the primary alone, and a token of it may fall again.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, the connection is no longer usable.
    pub async fn ask_or_cancel(&mut self, statement: String) -> Result<Answer, Failure> {
        let clock = self.settings.clock().clone();
        let sent = clock.now();
        self.link.is_asking(sent);
        let end = sent.plus(self.settings.request_timeout);
        let mut is_cancelled = false;
        let stop = async {
            clock.sleep_until(end).await;
            is_cancelled = true;
        };
        let answer = self.ask_until(stop, statement).await;
        self.link.has_asked(self.now());
        match answer {
            Err(Failure::Broken(_)) => answer,
            _ if is_cancelled => Err(Failure::refusal(blocked(Operation::Acquire))),
            answer => answer,
        }
    }
}
