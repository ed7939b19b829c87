//! The control connection, without holds and waiters: it cancels waits on other connections, and looks at them.
//!
//! The client opens it when needed, and closes it after a while without use. A caller may drop its future at any time: the answer
//! is then dropped.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{BackendContext, Backoff, LockError, Operation};
use tokio::sync::{mpsc, oneshot};

use crate::failure::{Failure, gone};
use crate::link::{Link, LinkState};
use crate::server::SessionId;
use crate::session::{Answer, Row, Session};
use crate::settings::Settings;
use crate::statement;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How many waits one statement asks about.
const MOST_WAITS: usize = 500;

/// A request and the channel for its answer.
struct Request {
    operation: Operation,
    kind: RequestKind,
    answer: oneshot::Sender<Result<Answer, Failure>>,
}

enum RequestKind {
    Statement(String),
    /// What a waiting session does. One statement asks about several.
    Wait(SessionId),
    /// The last request: close the connection.
    Close,
}

/// What the server says of a session that was sent to wait for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It waits for the lock, which another session holds.
    Waiting,
    /// It carries out its statement, and is not in the queue: it was not or is no longer, or the server is slow.
    Active,
    /// It does nothing: its statement is on the way, or its answer, or either was lost.
    Idle,
    /// It does not exist.
    Gone,
}

pub(crate) struct Control {
    context: BackendContext,
    settings: Arc<Settings>,
    requests: mpsc::UnboundedSender<Request>,
}

impl Control {
    pub(crate) fn start(context: BackendContext, settings: Arc<Settings>) -> Arc<Self> {
        let (requests, asked) = mpsc::unbounded_channel();
        let worker = Worker {
            context: context.clone(),
            settings: Arc::clone(&settings),
            session: None,
            deferred: VecDeque::new(),
        };
        context.spawn(worker.work(asked));
        Arc::new(Self { context, settings, requests })
    }

    async fn put(&self, operation: Operation, kind: RequestKind) -> Result<Answer, Failure> {
        let (answer, answered) = oneshot::channel();
        // If the task has ended, it drops the answer's sender with the request, which reports this.
        let _ = self.requests.send(Request { operation, kind, answer });
        answered.await.unwrap_or_else(|_| Err(Failure::Broken(gone(operation))))
    }

    /// Ends the connection for good.
    pub(crate) async fn close(&self) {
        // A close has no answer.
        let _ = self.put(Operation::Close, RequestKind::Close).await;
    }

    /// Carries out a statement that changes nothing, or that may be carried out twice.
    pub(crate) async fn ask(&self, operation: Operation, statement: String) -> Result<Answer, LockError> {
        self.try_to_ask(operation, statement).await.map_err(Failure::into_error)
    }

    /// The same, for a caller that knows what to do about a failure.
    pub(crate) async fn try_to_ask(
        &self,
        operation: Operation,
        statement: String,
    ) -> Result<Answer, Failure> {
        self.put(operation, RequestKind::Statement(statement)).await
    }

    /// Looks at a session that was sent to wait.
    pub(crate) async fn look_at_wait(&self, session: SessionId) -> Result<Seen, LockError> {
        let clock = self.context.clock();
        let deadline = clock.now().plus(self.settings.request_timeout);
        let asked = within(clock, deadline, self.put(Operation::Acquire, RequestKind::Wait(session))).await;
        let answer = asked.unwrap_or_else(|| Err(Failure::silence(Operation::Acquire)));
        Ok(seen(session, &answer.map_err(Failure::into_error)?.rows))
    }

    /// Cancels what a session waits for. After an error it is unknown whether the wait is cancelled, or will be.
    pub(crate) async fn cancel(&self, session: SessionId) -> Result<(), LockError> {
        self.ask(Operation::Cancel, statement::cancel(session)).await.map(drop)
    }

    /// Makes sure that the server forgets a session and everything that it holds, however long that takes.
    pub(crate) fn terminate(self: &Arc<Self>, link: Arc<Link>) {
        let this = Arc::clone(self);
        self.context.spawn(async move {
            let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
            // The server usually notices by itself that the client has gone.
            let mut statement = statement::find(link.session);
            loop {
                match this.ask(Operation::Cancel, statement).await {
                    Ok(answer) if answer.rows.is_empty() => break,
                    Ok(_) => {}
                    Err(error) => {
                        let session = link.session;
                        tracing::debug!(target: "distlock", %session, %error, "a session cannot be ended yet");
                    }
                }
                statement = statement::end(link.session, Operation::Cancel);
                let clock = this.context.clock();
                clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
            }
            link.reaches(LinkState::Terminated);
        });
    }
}

fn seen(session: SessionId, rows: &[Row]) -> Seen {
    let (pid, start) = (session.pid.to_string(), session.start.to_string());
    let row = rows.iter().find_map(|row| match row.as_slice() {
        [Some(found), Some(since), waits] if *found == pid && *since == start => Some(waits.as_deref()),
        _ => None,
    });
    match row {
        None => Seen::Gone,
        Some(Some("advisory")) => Seen::Waiting,
        Some(Some("active")) => Seen::Active,
        Some(_) => Seen::Idle,
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Control").finish_non_exhaustive()
    }
}

/// The task that answers the requests.
struct Worker {
    context: BackendContext,
    settings: Arc<Settings>,
    session: Option<Session>,
    /// Other requests that were taken out of the queue while gathering those about waits.
    deferred: VecDeque<Request>,
}

impl Worker {
    async fn work(mut self, mut asked: mpsc::UnboundedReceiver<Request>) {
        while let Some(request) = self.next(&mut asked).await {
            match &request.kind {
                RequestKind::Close => break,
                RequestKind::Wait(session) => {
                    let first = *session;
                    self.answer_about_waits(first, request, &mut asked).await;
                }
                RequestKind::Statement(statement) => {
                    let statement = statement.clone();
                    let answer = self.carry_out(request.operation, &statement).await;
                    // Sending fails if the caller has gone.
                    let _ = request.answer.send(answer);
                }
            }
        }
        if let Some(session) = self.session.take() {
            session.close(self.context.clock()).await;
        }
    }

    /// The next request. Closes the connection if there is none for a while.
    async fn next(&mut self, asked: &mut mpsc::UnboundedReceiver<Request>) -> Option<Request> {
        loop {
            let request = if let Some(request) = self.deferred.pop_front() {
                Some(request)
            } else if self.session.is_some() {
                let clock = self.context.clock();
                let idle = clock.now().plus(self.settings.longest_idle());
                let Some(request) = within(clock, idle, asked.recv()).await else {
                    if let Some(session) = self.session.take() {
                        session.close(self.context.clock()).await;
                    }
                    continue;
                };
                request
            } else {
                asked.recv().await
            };
            match request {
                Some(request) if request.answer.is_closed() => {}
                request => return request,
            }
        }
    }

    /// Answers all requests about waits of this moment, as many as one statement takes.
    async fn answer_about_waits(
        &mut self,
        first: SessionId,
        request: Request,
        asked: &mut mpsc::UnboundedReceiver<Request>,
    ) {
        let (mut sessions, mut answers) = (vec![first], vec![request.answer]);
        while sessions.len() < MOST_WAITS
            && let Ok(request) = asked.try_recv()
        {
            match request.kind {
                RequestKind::Wait(session) => {
                    sessions.push(session);
                    answers.push(request.answer);
                }
                _ => self.deferred.push_back(request),
            }
        }
        let said = self.carry_out(Operation::Acquire, &statement::waits(&sessions)).await;
        let said = said.map_err(Failure::into_error);
        for answer in answers {
            let copy = said.as_ref().map(|said| Answer { rows: said.rows.clone(), ..Answer::default() });
            let _ = answer.send(copy.map_err(|error| Failure::Broken(error.clone())));
        }
    }

    async fn carry_out(&mut self, operation: Operation, statement: &str) -> Result<Answer, Failure> {
        let was_open = self.session.is_some();
        match self.ask(operation, statement).await {
            // The server may have closed it meanwhile.
            Err(Failure::Broken(_)) if was_open => {
                self.ask(operation, statement).await.map(|answer| Answer { is_repeated: true, ..answer })
            }
            answer => answer,
        }
    }

    /// Asks, and drops the connection if it breaks or stays silent.
    async fn ask(&mut self, operation: Operation, statement: &str) -> Result<Answer, Failure> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.settings.open(&self.context).await.map_err(Failure::Broken)?,
        };
        let clock = self.context.clock();
        let deadline = clock.now().plus(self.settings.request_timeout);
        let asked = within(clock, deadline, session.ask(operation, statement.to_owned())).await;
        let answer = asked.unwrap_or_else(|| Err(Failure::silence(operation)));
        if !matches!(answer, Err(Failure::Broken(_))) {
            self.session = Some(session);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_distinguished_from_a_later_one_of_the_same_process_id() {
        let text = |text: &str| Some(text.to_owned());
        let rows = [
            vec![text("7"), text("100"), text("advisory")],
            vec![text("8"), text("200"), text("idle")],
            vec![text("9"), text("300"), text("active")],
            vec![text("10"), text("400"), None],
        ];
        let session = |pid, start| SessionId { pid, start };
        assert_eq!(seen(session(7, 100), &rows), Seen::Waiting);
        assert_eq!(seen(session(8, 200), &rows), Seen::Idle);
        assert_eq!(seen(session(9, 300), &rows), Seen::Active);
        assert_eq!(seen(session(10, 400), &rows), Seen::Idle);
        assert_eq!(seen(session(8, 201), &rows), Seen::Gone);
        assert_eq!(seen(session(11, 200), &rows), Seen::Gone);
    }
}
