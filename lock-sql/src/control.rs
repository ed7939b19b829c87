//! The control connection, without holds and waiters: it cancels waits on other connections, and looks at them.
//!
//! The client opens it when needed, and closes it after a while without use. A caller may drop its future at any time: the answer
//! is then dropped.

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

/// The id of the session that has answered, and its answer.
type Said<D> = Result<(<D as Dialect>::Id, Answer), Failure>;

struct Request<D: Dialect> {
    operation: Operation,
    statement: String,
    /// A session of the run of the server that the statement is about, if it is about one run.
    about: Option<D::Id>,
    said: oneshot::Sender<Said<D>>,
}

/// The control connection of a client.
pub struct Control<D: Dialect> {
    settings: Arc<Settings<D>>,
    /// After the last one comes none: the task closes the connection.
    requests: mpsc::UnboundedSender<Option<Request<D>>>,
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

    /// Ends the connection for good.
    ///
    /// # Cancel safety
    /// It ends all the same.
    pub async fn close(&self) {
        // One that has already ended needs nothing more.
        let _ = self.requests.send(None);
        self.requests.closed().await;
    }

    /// Carries out a statement that changes nothing, or that may be carried out twice.
    ///
    /// # Errors
    /// Why the server did not carry it out.
    ///
    /// # Cancel safety
    /// The statement may be carried out.
    pub async fn ask(&self, operation: Operation, statement: String) -> Result<Answer, LockError> {
        let said = self.try_to_ask(operation, statement, None).await;
        said.map(|(_, answer)| answer).map_err(Failure::into_error)
    }

    /// Carries out a statement about the run of the server that has, or had, this session; `None` in another
    /// [run](Dialect::is_one_run), where there is no session with that number, and if the server says that there is none. If an earlier
    /// answer was lost, the statement has made it so.
    ///
    /// # Errors
    /// Why the server did not carry it out.
    ///
    /// # Cancel safety
    /// The statement may be carried out.
    pub async fn ask_in_run_of(
        &self,
        session: &D::Id,
        operation: Operation,
        statement: String,
    ) -> Result<Option<Answer>, LockError> {
        match self.try_to_ask(operation, statement, Some(session.clone())).await {
            Ok((_, answer)) => Ok(Some(answer)),
            Err(failure) if failure.why() == Some(Why::NoSession) => Ok(None),
            Err(failure) => Err(failure.into_error()),
        }
    }

    /// Carries out a statement, about a run of the server if that is said, and also returns the id of the session that has answered.
    ///
    /// # Errors
    /// The failure.
    ///
    /// # Cancel safety
    /// The statement may be carried out.
    pub async fn try_to_ask(
        &self,
        operation: Operation,
        statement: String,
        about: Option<D::Id>,
    ) -> Result<(D::Id, Answer), Failure> {
        let (said, answered) = oneshot::channel();
        // If the task has ended, it drops the sender with the request, which reports this.
        let _ = self.requests.send(Some(Request { operation, statement, about, said }));
        answered.await.unwrap_or_else(|_| Err(Failure::Broken(gone(operation))))
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
            let said = self.try_to_ask(Operation::Acquire, D::look(key, id), None).await;
            said.map(|(by, answer)| D::seen(&by, id, &answer)).map_err(Failure::into_error)
        };
        self.settings.in_time(self.settings.request_timeout, Operation::Acquire, looking).await
    }

    /// Cancels what a session waits for. Returns whether that is over: otherwise the server may cancel something later, perhaps again.
    ///
    /// # Cancel safety
    /// The wait may be cancelled.
    pub async fn cancel(&self, session: &D::Id) -> bool {
        let cancelled = self.ask_in_run_of(session, Operation::Cancel, D::cancel(session)).await;
        matches!(cancelled, Ok(Some(Answer { is_repeated: false, .. })))
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
                    Err(_) if this.requests.is_closed() => return,
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

/// The task that answers the requests.
struct Worker<D: Dialect> {
    settings: Arc<Settings<D>>,
    session: Option<Session<D>>,
}

impl<D: Dialect> Worker<D> {
    async fn work(mut self, mut asked: mpsc::UnboundedReceiver<Option<Request<D>>>) {
        while let Some(request) = self.next(&mut asked).await {
            let answer = self.carry_out(&request).await;
            // Sending fails if the caller has gone.
            let _ = request.said.send(answer);
        }
        self.close().await;
    }

    async fn close(&mut self) {
        if let Some(session) = self.session.take() {
            session.close(self.settings.clock()).await;
        }
    }

    /// The next request. Closes the connection if there is none for a while.
    async fn next(&mut self, asked: &mut mpsc::UnboundedReceiver<Option<Request<D>>>) -> Option<Request<D>> {
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
            match request.flatten() {
                Some(Request { said, .. }) if said.is_closed() => {}
                request => return request,
            }
        }
    }

    async fn carry_out(&mut self, request: &Request<D>) -> Said<D> {
        let was_open = self.session.is_some();
        let (by, answer) = match self.ask(request).await {
            // The server may have closed it meanwhile.
            Err(Failure::Broken(_)) if was_open => match self.ask(request).await {
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
    async fn ask(&mut self, request: &Request<D>) -> Said<D> {
        let Request { operation, statement, about, .. } = request;
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.settings.open().await.map_err(Failure::Broken)?,
        };
        if about.as_ref().is_some_and(|about| !D::is_one_run(&session.id, about)) {
            self.session = Some(session);
            return Err(Failure::Refused { why: Why::NoSession, error: gone(*operation) });
        }
        let id = session.id.clone();
        let clock = self.settings.clock();
        let deadline = clock.now().plus(self.settings.time_for(*operation));
        let asked = within(clock, deadline, session.ask(*operation, statement.clone())).await;
        let answer = asked.unwrap_or_else(|| Err(Failure::silence(*operation)));
        if !matches!(answer, Err(Failure::Broken(_))) {
            self.session = Some(session);
        }
        Ok((id, answer?))
    }
}
