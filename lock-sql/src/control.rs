//! The control connection, without holds and waiters: it cancels waits on other connections, and looks at them.
//!
//! The client opens it when needed, and closes it after a while without use. A caller may drop its future at any time: the answer
//! is then dropped.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{Backoff, LockError, Operation};
use lock_kit::gone;
use tokio::sync::{mpsc, oneshot};

use crate::attempt::Seen;
use crate::dialect::Dialect;
use crate::failure::{Failure, Why};
use crate::link::{Link, LinkState};
use crate::session::{Answer, Session};
use crate::settings::Settings;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

enum Request<D: Dialect> {
    Statement {
        operation: Operation,
        statement: String,
        /// A session of the run of the server that the statement is about, if it is about one run.
        about: Option<D::Id>,
        /// Gets the id of the session that has answered, too.
        answer: oneshot::Sender<Result<(D::Id, Answer), Failure>>,
    },
    /// The last request: close the connection.
    Close { done: oneshot::Sender<()> },
}

/// The control connection of a client.
pub struct Control<D: Dialect> {
    settings: Arc<Settings<D>>,
    requests: mpsc::UnboundedSender<Request<D>>,
}

impl<D: Dialect> Control<D> {
    /// Starts its task, which opens no connection yet.
    pub fn start(settings: &Arc<Settings<D>>) -> Arc<Self> {
        let (requests, asked) = mpsc::unbounded_channel();
        let worker = Worker { settings: Arc::clone(settings), session: None };
        settings.context.spawn(worker.work(asked));
        Arc::new(Self { settings: Arc::clone(settings), requests })
    }

    /// Returns the settings of the client.
    pub fn settings(&self) -> &Settings<D> {
        &self.settings
    }

    /// Puts a request into the queue, and awaits its answer; `None` if the task has ended.
    async fn put<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request<D>) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        // If the task has ended, it drops the answer's sender with the request, which reports this.
        let _ = self.requests.send(request(answer));
        answered.await.ok()
    }

    async fn put_statement(
        &self,
        operation: Operation,
        statement: String,
        about: Option<D::Id>,
    ) -> Result<(D::Id, Answer), Failure> {
        let put = self.put(|answer| Request::Statement { operation, statement, about, answer });
        put.await.unwrap_or_else(|| Err(Failure::Broken(gone(operation))))
    }

    /// Ends the connection for good.
    ///
    /// # Cancel safety
    /// It ends all the same.
    pub async fn close(&self) {
        // A close has no answer.
        let _ = self.put(|done| Request::Close { done }).await;
    }

    /// Carries out a statement that changes nothing, or that may be carried out twice.
    ///
    /// # Errors
    /// Why the server did not carry it out.
    ///
    /// # Cancel safety
    /// The statement may be carried out.
    pub async fn ask(&self, operation: Operation, statement: String) -> Result<Answer, LockError> {
        self.try_to_ask(operation, statement).await.map_err(Failure::into_error)
    }

    /// The same, for a caller that knows what to do about a failure.
    ///
    /// # Errors
    /// The failure.
    ///
    /// # Cancel safety
    /// The statement may be carried out.
    pub async fn try_to_ask(&self, operation: Operation, statement: String) -> Result<Answer, Failure> {
        self.put_statement(operation, statement, None).await.map(|(_, answer)| answer)
    }

    /// The same as [`ask`](Self::ask); also returns the id of the session that has answered.
    ///
    /// # Errors
    /// Why the server did not carry it out.
    ///
    /// # Cancel safety
    /// The statement may be carried out.
    pub async fn ask_as(
        &self,
        operation: Operation,
        statement: String,
    ) -> Result<(D::Id, Answer), LockError> {
        self.put_statement(operation, statement, None).await.map_err(Failure::into_error)
    }

    /// Carries out a statement about the run of the server that has, or had, this session. In another [run](Dialect::is_one_run)
    /// there is no session with that number.
    ///
    /// # Errors
    /// The failure. There is none if the first of two times has carried it out.
    ///
    /// # Cancel safety
    /// The statement may be carried out.
    pub async fn ask_in_run_of(
        &self,
        session: &D::Id,
        operation: Operation,
        statement: String,
    ) -> Result<Answer, Failure> {
        self.put_statement(operation, statement, Some(session.clone())).await.map(|(_, answer)| answer)
    }

    /// Looks at a session's wait for a lock; also at its place, if that is sought.
    ///
    /// # Errors
    /// Why the server said nothing of it.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn look_at_wait(&self, key: &D::Key, id: &D::Id, seeks_place: bool) -> Result<Seen, LockError> {
        let looking = async {
            if seeks_place && D::is_queued(self, id).await? {
                return Ok(Seen::Waiting);
            }
            let (by, answer) = self.ask_as(Operation::Acquire, D::look(key, id)).await?;
            Ok(D::seen(&by, id, &answer))
        };
        self.settings.in_time(self.settings.request_timeout, Operation::Acquire, looking).await
    }

    /// Cancels what a session waits for. Returns whether that is over: otherwise the server may cancel something later, perhaps again.
    ///
    /// # Cancel safety
    /// The wait may be cancelled.
    pub async fn cancel(&self, session: &D::Id) -> bool {
        let cancelled = self.ask_in_run_of(session, Operation::Cancel, D::cancel(session)).await;
        cancelled.is_ok_and(|answer| !answer.is_repeated)
    }

    /// Makes sure that the server forgets a session and everything that it holds, however long that takes.
    pub(crate) fn terminate(self: &Arc<Self>, link: Arc<Link<D>>) {
        let this = Arc::clone(self);
        self.settings.context.spawn(async move {
            let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
            for calls in 0.. {
                match D::remains(&this, &link.session, calls).await {
                    Ok(false) => break,
                    Ok(true) => {}
                    Err(error) => {
                        let session = &link.session;
                        tracing::debug!(target: "distlock", %session, %error, "a session cannot be ended yet");
                    }
                }
                let clock = this.settings.clock();
                clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
            }
            link.reaches(LinkState::Terminated);
        });
    }
}

impl<D: Dialect> fmt::Debug for Control<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Control").finish_non_exhaustive()
    }
}

/// The task that answers the requests.
struct Worker<D: Dialect> {
    settings: Arc<Settings<D>>,
    session: Option<Session<D>>,
}

impl<D: Dialect> Worker<D> {
    async fn work(mut self, mut asked: mpsc::UnboundedReceiver<Request<D>>) {
        while let Some(request) = self.next(&mut asked).await {
            match request {
                Request::Close { done } => {
                    self.close().await;
                    return drop(done);
                }
                Request::Statement { operation, statement, about, answer } => {
                    let said = self.carry_out(operation, &statement, about.as_ref()).await;
                    // Sending fails if the caller has gone.
                    let _ = answer.send(said);
                }
            }
        }
        self.close().await;
    }

    async fn close(&mut self) {
        if let Some(session) = self.session.take() {
            session.close(self.settings.clock()).await;
        }
    }

    /// The next request. Closes the connection if there is none for a while.
    async fn next(&mut self, asked: &mut mpsc::UnboundedReceiver<Request<D>>) -> Option<Request<D>> {
        loop {
            let request = if self.session.is_some() {
                let clock = self.settings.clock();
                let idle = clock.now().plus(self.settings.longest_idle());
                let Some(request) = within(clock, idle, asked.recv()).await else {
                    self.close().await;
                    continue;
                };
                request
            } else {
                asked.recv().await
            };
            match request {
                Some(Request::Statement { answer, .. }) if answer.is_closed() => {}
                request => return request,
            }
        }
    }

    async fn carry_out(
        &mut self,
        operation: Operation,
        statement: &str,
        about: Option<&D::Id>,
    ) -> Result<(D::Id, Answer), Failure> {
        let was_open = self.session.is_some();
        let (by, answer) = match self.ask(operation, statement, about).await {
            // The server may have closed it meanwhile.
            Err(Failure::Broken(_)) if was_open => match self.ask(operation, statement, about).await {
                // The first one was carried out, and its answer was lost.
                Err(failure) if failure.why() == Some(Why::NoSession) => match &self.session {
                    Some(session) => (session.id.clone(), Answer::default()),
                    None => return Err(failure),
                },
                again => again?,
            },
            answer => return answer,
        };
        Ok((by, Answer { is_repeated: true, ..answer }))
    }

    /// Asks, and drops the connection if it breaks or stays silent.
    async fn ask(
        &mut self,
        operation: Operation,
        statement: &str,
        about: Option<&D::Id>,
    ) -> Result<(D::Id, Answer), Failure> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.settings.open().await.map_err(Failure::Broken)?,
        };
        if about.is_some_and(|about| !D::is_one_run(&session.id, about)) {
            self.session = Some(session);
            return Err(Failure::no_session(operation));
        }
        let id = session.id.clone();
        let clock = self.settings.clock();
        let deadline = clock.now().plus(self.settings.time_for(operation));
        let asked = within(clock, deadline, session.ask(operation, statement.to_owned())).await;
        let answer = asked.unwrap_or_else(|| Err(Failure::silence(operation)));
        if !matches!(answer, Err(Failure::Broken(_))) {
            self.session = Some(session);
        }
        Ok((id, answer?))
    }
}
