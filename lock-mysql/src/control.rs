//! The control connection, without holds and waiters: it ends waits on other connections, and checks locks.
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

use crate::failure::{Failure, gone, no_answer};
use crate::link::{Link, LinkState, Name};
use crate::run::Run;
use crate::session::{Answer, Session};
use crate::session_tag::SessionTag;
use crate::settings::Settings;
use crate::statement;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How often the client may see a connection reading before it ends that connection. `MySQL` 5.7 may miss the command to end a
/// connection that goes back to reading at that very moment, and would then keep its locks until the lease is over.
const LOOKS_BEFORE_THE_END: u32 = 4;

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
    /// A statement about a connection of this run of the server. In another run that connection does not exist.
    OfRun(Run, String),
    /// Which connection holds this lock, and which has the lock of this session, in that run of the server. One statement asks
    /// about several waits.
    Wait(Run, Name, SessionTag),
    /// The last request.
    Close,
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

    /// The same; also returns the run of the server that has answered.
    pub(crate) async fn ask_with_run(
        &self,
        operation: Operation,
        statement: String,
    ) -> Result<(Run, Answer), LockError> {
        let mut answer = self.ask(operation, statement).await?;
        let run = answer.run.take().ok_or_else(|| gone(operation))?;
        Ok((run, answer))
    }

    /// The same, if the connection that the statement is about belongs to `run`.
    pub(crate) async fn ask_of(
        &self,
        run: &Run,
        operation: Operation,
        statement: String,
    ) -> Result<Answer, Failure> {
        self.put(operation, RequestKind::OfRun(run.clone(), statement)).await
    }

    /// Looks at a wait for a lock. If the run of the server in which the wait began is over, it sees neither holder nor waiter.
    pub(crate) async fn look_at_wait(&self, name: &Name, link: &Link) -> Result<Seen, LockError> {
        let clock = self.context.clock();
        let deadline = clock.now().plus(self.settings.request_timeout);
        let kind = RequestKind::Wait(link.run.clone(), Arc::clone(name), link.tag);
        let asked = within(clock, deadline, self.put(Operation::Acquire, kind)).await;
        let answer = asked.unwrap_or_else(|| Err(Failure::silence(Operation::Acquire)));
        let answer = answer.map_err(Failure::into_error)?;
        let number = |column: usize| answer.rows.first()?.get(column)?.as_deref()?.parse().ok();
        let holder = number(0).filter(|number| *number != 0);
        Ok(Seen { holder, is_waiter_there: number(1) == Some(link.connection) })
    }

    /// Whether the server has put the statement of this connection into the queue of a lock.
    pub(crate) async fn waits(&self, link: &Link) -> Result<bool, LockError> {
        let clock = self.context.clock();
        let deadline = clock.now().plus(self.settings.request_timeout);
        let looked = within(clock, deadline, self.look_at(link, Operation::Acquire)).await;
        let remains = looked.unwrap_or_else(|| Err(no_answer(Operation::Acquire)))?;
        Ok(matches!(remains, Remains::Waiter))
    }

    /// Cancels what a connection waits for. After an error it is unknown whether the wait is cancelled, or will be.
    pub(crate) async fn cancel(&self, connection: u64, run: &Run) -> Result<(), Failure> {
        self.ask_of(run, Operation::Cancel, statement::cancel(connection)).await.map(drop)
    }

    /// Makes sure that the server forgets a connection and everything on it, however long that takes.
    pub(crate) fn terminate(self: &Arc<Self>, link: Arc<Link>) {
        let this = Arc::clone(self);
        self.context.spawn(async move {
            let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
            let mut seen_reading = 0;
            loop {
                match this.look_at(&link, Operation::Cancel).await {
                    Ok(Remains::Nothing) => break,
                    Ok(Remains::Waiter) => this.end(&link).await,
                    // The server is reading, and will notice by itself that the client has gone, unless the network prevents that.
                    Ok(Remains::Reader) => {
                        seen_reading += 1;
                        if seen_reading > LOOKS_BEFORE_THE_END {
                            this.end(&link).await;
                        }
                    }
                    Err(error) => {
                        tracing::debug!(target: "distlock", connection = link.connection, %error, "a connection cannot be ended yet");
                    }
                }
                let clock = this.context.clock();
                clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
            }
            link.reaches(LinkState::Terminated);
        });
    }

    async fn look_at(&self, link: &Link, operation: Operation) -> Result<Remains, LockError> {
        let statement = statement::state_of(link.connection, operation);
        match self.ask_of(&link.run, operation, statement).await {
            Ok(answer) => Ok(match answer.rows.first() {
                None => Remains::Nothing,
                Some(_) if answer.value() == Some("User lock") => Remains::Waiter,
                Some(_) => Remains::Reader,
            }),
            Err(failure) if failure.is_unknown_thread() => Ok(Remains::Nothing),
            Err(failure) => Err(failure.into_error()),
        }
    }

    async fn end(&self, link: &Link) {
        let end = statement::end(link.connection, Operation::Cancel);
        if let Err(failure) = self.ask_of(&link.run, Operation::Cancel, end).await {
            let error = failure.into_error();
            tracing::debug!(target: "distlock", connection = link.connection, %error, "a connection was not ended");
        }
    }
}

/// What a check of a wait has found.
pub(crate) struct Seen {
    /// The connection that holds the lock, if any does.
    pub(crate) holder: Option<u64>,
    /// Whether the server has the session that waits.
    pub(crate) is_waiter_there: bool,
}

/// What the server still has of a connection that has ended on this side.
enum Remains {
    Nothing,
    /// It waits for a lock, and checks once a second whether the client is still there.
    Waiter,
    Reader,
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
            match request.kind {
                RequestKind::Close => break,
                RequestKind::Wait(..) => {
                    let requests = self.gather(request, &mut asked);
                    self.answer_about_waits(requests).await;
                }
                _ => self.answer_one(request).await,
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

    /// All requests about waits at this moment, as many as one statement takes.
    fn gather(&mut self, first: Request, asked: &mut mpsc::UnboundedReceiver<Request>) -> Vec<Request> {
        let mut gathered = vec![first];
        while gathered.len() < MOST_WAITS
            && let Ok(request) = asked.try_recv()
        {
            if matches!(request.kind, RequestKind::Wait(..)) {
                gathered.push(request);
            } else {
                self.deferred.push_back(request);
            }
        }
        gathered
    }

    async fn answer_about_waits(&mut self, requests: Vec<Request>) {
        let names = requests.iter().filter_map(|request| match &request.kind {
            RequestKind::Wait(_, name, tag) => Some([name.to_string(), tag.lock()]),
            _ => None,
        });
        let statement = statement::holders(names.flatten(), Operation::Inspect);
        let answer = self.carry_out(Operation::Acquire, &statement).await.map_err(Failure::into_error);
        let run = self.session.as_ref().map(|session| session.run.clone());
        let holders = answer.as_ref().ok().and_then(Answer::value).unwrap_or_default();
        let mut holders = holders.split(' ').map(str::to_owned);
        for request in requests {
            let seen = vec![holders.next(), holders.next()];
            let is_of_run = match &request.kind {
                RequestKind::Wait(of, ..) => run.as_ref().is_none_or(|run| run.is_same_as(of)),
                _ => true,
            };
            let said = match &answer {
                Ok(_) if is_of_run => Ok(Answer { rows: vec![seen], ..Answer::default() }),
                Ok(_) => Ok(Answer::default()),
                Err(error) => Err(Failure::Broken(error.clone())),
            };
            // Sending fails if the caller has gone.
            let _ = request.answer.send(said);
        }
    }

    async fn answer_one(&mut self, request: Request) {
        let answer = match &request.kind {
            RequestKind::Statement(statement) => self.carry_out(request.operation, statement).await,
            RequestKind::OfRun(run, statement) => {
                let (run, statement) = (run.clone(), statement.clone());
                self.carry_out_of(&run, request.operation, &statement).await
            }
            RequestKind::Wait(..) | RequestKind::Close => Ok(Answer::default()),
        };
        let _ = request.answer.send(answer);
    }

    async fn carry_out_of(
        &mut self,
        run: &Run,
        operation: Operation,
        statement: &str,
    ) -> Result<Answer, Failure> {
        for is_repeated in [false, true] {
            let session = self.connected().await.map_err(Failure::Broken)?;
            if !session.run.is_same_as(run) {
                return Err(Failure::unknown_thread(operation));
            }
            match self.ask_session(operation, statement).await {
                // The server may have closed it meanwhile; a new connection shows which run this is.
                Err(Failure::Broken(error)) if self.session.is_none() => {
                    tracing::debug!(target: "distlock", %error, "the connection for control has ended");
                }
                // The first one was carried out, and its answer was lost.
                Err(failure) if is_repeated && failure.is_unknown_thread() => return Ok(Answer::default()),
                answer => return answer,
            }
        }
        Err(Failure::Broken(gone(operation)))
    }

    async fn carry_out(&mut self, operation: Operation, statement: &str) -> Result<Answer, Failure> {
        let was_open = self.session.is_some();
        self.connected().await.map_err(Failure::Broken)?;
        match self.ask_session(operation, statement).await {
            Err(Failure::Broken(_)) if was_open => {
                self.connected().await.map_err(Failure::Broken)?;
                self.ask_session(operation, statement).await
            }
            answer => answer,
        }
    }

    async fn connected(&mut self) -> Result<&Session, LockError> {
        if self.session.is_none() {
            self.session = Some(self.settings.open(&self.context).await?);
        }
        self.session.as_ref().ok_or_else(|| gone(Operation::Connect))
    }

    /// Asks, and drops the connection if it breaks or stays silent.
    async fn ask_session(&mut self, operation: Operation, statement: &str) -> Result<Answer, Failure> {
        let Some(mut session) = self.session.take() else {
            return Err(Failure::Broken(gone(operation)));
        };
        let clock = self.context.clock();
        let deadline = clock.now().plus(self.settings.time_for(operation));
        let asked = within(clock, deadline, session.ask(operation, statement.to_owned())).await;
        let answer = asked.unwrap_or_else(|| Err(Failure::silence(operation)));
        if !matches!(answer, Err(Failure::Broken(_))) {
            self.session = Some(session);
        }
        answer
    }
}
