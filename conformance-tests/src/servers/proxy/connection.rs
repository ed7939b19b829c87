//! One connection: what is read on one side is written on the other, later, in part, or not at all.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::Shutdown;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use super::conversation::{Conversation, Execution, Subject};
use super::shared::{Direction, Fault, Losing, Part, Shared, Way};

/// Into how many pieces whatever arrives at once is sliced at the most, with a pause after each.
const MOST_PIECES: usize = 100;
const PAUSE: Duration = Duration::from_millis(1);

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// What is to be written next.
enum Item {
    Bytes {
        due: Instant,
        bytes: Vec<u8>,
    },
    /// Nothing more until the hold with this number is over.
    Hold(u64),
    /// The side that this came from has said its last word.
    End,
    Cut,
    Reset,
}

/// Why a connection ends that did not end by itself.
enum Ended {
    Cut,
    Reset,
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        // What one side does to its connection, the other side is to see.
        Self::Reset
    }
}

/// What both directions have to know.
struct State {
    conversation: Box<dyn Conversation>,
    /// What is to be done to the replies to these requests.
    faults: HashMap<u64, (Subject, Fault)>,
}

struct Connection {
    client: Arc<TcpStream>,
    server: Arc<TcpStream>,
    state: Mutex<State>,
    shared: Arc<Shared>,
    client_ended: Notify,
}

/// Passes on between `client` and the server until either ends, or all are cut.
pub(super) fn spawn(client: TcpStream, shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        // Without a server there is nothing to be had here: the client sees its connection end.
        let Ok(server) = TcpStream::connect(shared.target).await else { return };
        if client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).is_err() {
            return;
        }
        let (client, server) = (Arc::new(client), Arc::new(server));
        let state = State { conversation: (shared.make_conversation)(), faults: HashMap::new() };
        let connection = Connection {
            client: Arc::clone(&client),
            server: Arc::clone(&server),
            state: Mutex::new(state),
            shared: Arc::clone(&shared),
            client_ended: Notify::new(),
        };
        let id = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (registered, may_go_on) = tokio::sync::oneshot::channel();
        let forgets = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            if may_go_on.await == Ok(true) {
                connection.run().await;
                forgets.forget(id);
            }
        });
        // It fails when the task has been aborted, which is as good.
        let _ = registered.send(shared.register(id, &client, &server, task.abort_handle()));
    });
}

impl Connection {
    async fn run(&self) {
        let (to_server, from_client) = mpsc::unbounded_channel();
        let (to_client, from_server) = mpsc::unbounded_channel();
        let ended = tokio::try_join!(
            self.read_requests(to_server),
            self.write(Direction::ToServer, from_client),
            self.read_replies(to_client),
            self.write(Direction::ToClient, from_server),
        );
        if let Err(Ended::Reset) = ended {
            for socket in [&self.client, &self.server] {
                // Then it is closed instead.
                let _ = socket.set_zero_linger();
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read_requests(&self, queue: UnboundedSender<Item>) -> Result<(), Ended> {
        let mut bytes = Vec::new();
        while read(&self.client, &mut bytes).await? {
            while let Some((length, way)) = self.take_request(&bytes) {
                let request: Vec<_> = bytes.drain(..length).collect();
                match way {
                    None => {}
                    Some(Way::Hold(number)) => self.hold(&queue, number),
                    Some(Way::Lose(Losing::Cut)) => {
                        push(&queue, Item::Cut);
                        return Ok(());
                    }
                    Some(Way::Lose(Losing::ResetHalfway)) => {
                        self.pass_half(Direction::ToServer, &queue, request);
                        return Ok(());
                    }
                    Some(Way::Lose(Losing::Silence)) => {
                        drain(&self.client).await?;
                        break;
                    }
                }
                self.pass(Direction::ToServer, &queue, request);
            }
        }
        push(&queue, Item::End);
        self.client_ended.notify_one();
        Ok(())
    }

    /// The length of the first request, and what is to be done to it, after noting what is to be done to its reply.
    fn take_request(&self, bytes: &[u8]) -> Option<(usize, Option<Way>)> {
        let mut state = self.state();
        let request = state.conversation.request(bytes)?;
        let noted = request.subject.and_then(|subject| Some((subject, self.shared.note_request(subject)?)));
        let way = match noted {
            Some((_, Fault { to: Part::Request, way })) => Some(way),
            Some((subject, fault)) => {
                state.faults.insert(request.number, (subject, fault));
                None
            }
            None => None,
        };
        Some((request.length, way))
    }

    /// Keeps back whatever comes after this.
    fn hold(&self, queue: &UnboundedSender<Item>, number: u64) {
        push(queue, Item::Hold(number));
        self.shared.reached.send_modify(|reached| *reached = number.max(*reached));
    }

    async fn read_replies(&self, queue: UnboundedSender<Item>) -> Result<(), Ended> {
        let mut bytes = Vec::new();
        while read(&self.server, &mut bytes).await? {
            if self.shared.resets_next_reply.swap(false, Ordering::SeqCst) {
                self.pass_half(Direction::ToClient, &queue, bytes);
                return Ok(());
            }
            while let Some((length, way)) = self.take_reply(&bytes) {
                let reply: Vec<_> = bytes.drain(..length).collect();
                match way {
                    None => {}
                    Some(Way::Hold(number)) => self.hold(&queue, number),
                    Some(Way::Lose(Losing::Cut)) => {
                        push(&queue, Item::Cut);
                        return Ok(());
                    }
                    Some(Way::Lose(Losing::ResetHalfway)) => {
                        self.pass_half(Direction::ToClient, &queue, reply);
                        return Ok(());
                    }
                    Some(Way::Lose(Losing::Silence)) => return self.swallow().await,
                }
                self.pass(Direction::ToClient, &queue, reply);
            }
        }
        push(&queue, Item::End);
        Ok(())
    }

    /// The length of the first reply, and what is to be done to it.
    fn take_reply(&self, bytes: &[u8]) -> Option<(usize, Option<Way>)> {
        let mut state = self.state();
        let reply = state.conversation.reply(bytes)?;
        let fault = reply.answers.and_then(|number| state.faults.remove(&number));
        let way = fault.and_then(|(subject, fault)| match reply.execution {
            Execution::Done => Some(fault.way),
            Execution::NotUnderstood => {
                self.shared.arm_again(subject, fault);
                None
            }
        });
        Some((reply.length, way))
    }

    fn pass(&self, direction: Direction, queue: &UnboundedSender<Item>, bytes: Vec<u8>) {
        let due = Instant::now() + self.shared.flows.borrow().of(direction).delay;
        push(queue, Item::Bytes { due, bytes });
    }

    fn pass_half(&self, direction: Direction, queue: &UnboundedSender<Item>, mut bytes: Vec<u8>) {
        bytes.truncate(bytes.len() / 2);
        self.pass(direction, queue, bytes);
        push(queue, Item::Reset);
    }

    /// Takes what the server sends, and keeps it: also that it has ended.
    async fn swallow(&self) -> Result<(), Ended> {
        drain(&self.server).await?;
        self.client_ended.notified().await;
        Ok(())
    }

    async fn write(&self, direction: Direction, mut queue: UnboundedReceiver<Item>) -> Result<(), Ended> {
        let socket = match direction {
            Direction::ToServer => &self.server,
            Direction::ToClient => &self.client,
        };
        while let Some(item) = queue.recv().await {
            match item {
                Item::Bytes { due, bytes } => {
                    tokio::time::sleep_until(due).await;
                    self.no_blackhole(direction).await;
                    self.write_bytes(direction, socket, &bytes).await?;
                }
                Item::Hold(number) => {
                    // The proxy has the other end of this for as long as there are connections.
                    let _ = self.shared.over.subscribe().wait_for(|over| *over >= number).await;
                }
                Item::End => {
                    self.no_blackhole(direction).await;
                    rustix::net::shutdown(socket, Shutdown::Write).map_err(io::Error::from)?;
                }
                Item::Cut => return Err(Ended::Cut),
                Item::Reset => return Err(Ended::Reset),
            }
        }
        Ok(())
    }

    /// A blackhole keeps what it is given: the system would send it again, and whoever waits for long enough gets it.
    async fn no_blackhole(&self, direction: Direction) {
        let mut flows = self.shared.flows.subscribe();
        let _ = flows.wait_for(|flows| !flows.of(direction).is_blackhole).await;
    }

    async fn write_bytes(&self, direction: Direction, socket: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        if !self.shared.flows.borrow().of(direction).is_sliced {
            return write_all(socket, bytes).await;
        }
        for piece in bytes.chunks(bytes.len().div_ceil(MOST_PIECES).max(1)) {
            write_all(socket, piece).await?;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }
}

/// Whoever would take it out again may have ended, and then nobody wants it.
fn push(queue: &UnboundedSender<Item>, item: Item) {
    let _ = queue.send(item);
}

/// Appends what has come. Answers whether there is more to come.
async fn read(socket: &TcpStream, bytes: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        socket.readable().await?;
        match socket.try_read_buf(bytes) {
            Ok(count) => return Ok(count > 0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Takes what comes, until that ends.
async fn drain(socket: &TcpStream) -> io::Result<()> {
    let mut bytes = Vec::new();
    while read(socket, &mut bytes).await? {
        bytes.clear();
    }
    Ok(())
}

async fn write_all(socket: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        socket.writable().await?;
        match socket.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
