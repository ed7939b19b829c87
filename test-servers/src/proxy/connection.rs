//! One connection of a proxy: what it reads on one side it writes on the other, later, in part, or not at all.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_core::spi::Mutex;
use rustix::net::Shutdown;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use super::conversation::{Conversation, Execution, Subject};
use super::shared::{Direction, Ends, Fault, Losing, Part, Shared, Way};

/// The maximum number of pieces into which data that arrives at once is sliced, with a pause after each.
const MOST_PIECES: usize = 100;
const PAUSE: Duration = Duration::from_millis(1);

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// What to write next.
enum Item {
    Bytes {
        due: Instant,
        bytes: Vec<u8>,
    },
    /// Nothing more until the hold with this number is over.
    Hold(u64),
    /// The sending side has closed its direction.
    End,
    Cut,
    Reset,
}

/// Why a connection was ended by the proxy.
enum Ended {
    Cut,
    Reset,
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        // If one side resets its connection, the other side has to see a reset.
        Self::Reset
    }
}

/// The state that both directions share.
struct State {
    conversation: Box<dyn Conversation>,
    /// The faults for the replies to these requests.
    faults: HashMap<u64, (Subject, Fault)>,
}

struct Connection {
    ends: Arc<Ends>,
    state: Mutex<State>,
    shared: Arc<Shared>,
    client_ended: Notify,
}

/// Forwards data between `client` and the server until one of them ends, or all connections are cut.
pub(super) fn spawn(client: TcpStream, shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let target = *shared.target.lock();
        // Without a server, the client sees its connection end.
        let Ok(server) = TcpStream::connect(target).await else { return };
        if client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).is_err() {
            return;
        }
        let ends = Arc::new(Ends { client, server, is_closed_by_client: AtomicBool::new(false) });
        let state = State { conversation: (shared.make_conversation)(), faults: HashMap::new() };
        let (mine, state, client_ended) = (Arc::clone(&shared), Mutex::new(state), Notify::new());
        let connection = Connection { ends: Arc::clone(&ends), state, shared: mine, client_ended };
        let id = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (registered, may_go_on) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            if may_go_on.await == Ok(true) {
                connection.run().await;
                connection.shared.links.lock().remove(&id);
            }
        });
        // This fails only if the task has been aborted, which is fine.
        let _ = registered.send(shared.register(id, ends, task.abort_handle()));
    });
}

impl Connection {
    async fn run(&self) {
        let (to_server, from_client) = mpsc::unbounded_channel();
        let (to_client, from_server) = mpsc::unbounded_channel();
        let ended = tokio::try_join!(
            self.read(Direction::ToServer, to_server),
            self.write(Direction::ToServer, from_client),
            self.read(Direction::ToClient, to_client),
            self.write(Direction::ToClient, from_server),
        );
        if let Err(Ended::Reset) = ended {
            for socket in [&self.ends.client, &self.ends.server] {
                // If this fails, the connection is closed instead.
                let _ = socket.set_zero_linger();
            }
        }
    }

    /// Returns the socket from which this direction comes, and the one to which it leads.
    fn sockets(&self, direction: Direction) -> (&TcpStream, &TcpStream) {
        let Ends { client, server, .. } = &*self.ends;
        match direction {
            Direction::ToServer => (client, server),
            Direction::ToClient => (server, client),
        }
    }

    async fn read(&self, direction: Direction, queue: UnboundedSender<Item>) -> Result<(), Ended> {
        let (socket, is_to_server) = (self.sockets(direction).0, direction == Direction::ToServer);
        let mut bytes = Vec::new();
        while read(socket, &mut bytes).await? {
            if !is_to_server && self.shared.resets_next_reply.swap(false, Ordering::SeqCst) {
                self.pass_half(direction, &queue, bytes);
                return Ok(());
            }
            while let Some((length, way)) =
                if is_to_server { self.take_request(&bytes) } else { self.take_reply(&bytes) }
            {
                let message: Vec<_> = bytes.drain(..length).collect();
                match way {
                    None => {}
                    Some(Way::Hold(number)) => self.hold(&queue, number),
                    Some(Way::Lose(Losing::Cut)) => {
                        push(&queue, Item::Cut);
                        return Ok(());
                    }
                    Some(Way::Lose(Losing::ResetHalfway)) => {
                        self.pass_half(direction, &queue, message);
                        return Ok(());
                    }
                    Some(Way::Lose(Losing::Silence)) => {
                        drain(socket).await?;
                        if is_to_server {
                            break;
                        }
                        // The client does not learn that the server has ended the connection, either.
                        self.client_ended.notified().await;
                        return Ok(());
                    }
                }
                self.pass(direction, &queue, message);
            }
        }
        push(&queue, Item::End);
        if is_to_server {
            self.ends.is_closed_by_client.store(true, Ordering::SeqCst);
            self.client_ended.notify_one();
        }
        Ok(())
    }

    /// Returns the length of the first request and its fault, after recording the fault of its reply.
    fn take_request(&self, bytes: &[u8]) -> Option<(usize, Option<Way>)> {
        let mut state = self.state.lock();
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

    /// Holds back everything that comes after this.
    fn hold(&self, queue: &UnboundedSender<Item>, number: u64) {
        push(queue, Item::Hold(number));
        self.shared.reached.send_modify(|reached| *reached = number.max(*reached));
    }

    /// Returns the length of the first reply and its fault.
    fn take_reply(&self, bytes: &[u8]) -> Option<(usize, Option<Way>)> {
        let mut state = self.state.lock();
        let reply = state.conversation.reply(bytes)?;
        let fault = reply.answers.and_then(|number| state.faults.remove(&number));
        let way = fault.and_then(|(subject, fault)| match reply.execution {
            Execution::Done => Some(fault.way),
            Execution::NotUnderstood => {
                // It is for the next one.
                self.shared.armed.lock().insert(0, (subject, fault));
                None
            }
        });
        Some((reply.length, way))
    }

    fn pass(&self, direction: Direction, queue: &UnboundedSender<Item>, bytes: Vec<u8>) {
        let due = Instant::now() + self.shared.flows.borrow()[direction as usize].delay;
        push(queue, Item::Bytes { due, bytes });
    }

    fn pass_half(&self, direction: Direction, queue: &UnboundedSender<Item>, mut bytes: Vec<u8>) {
        bytes.truncate(bytes.len() / 2);
        self.pass(direction, queue, bytes);
        push(queue, Item::Reset);
    }

    async fn write(&self, direction: Direction, mut queue: UnboundedReceiver<Item>) -> Result<(), Ended> {
        let socket = self.sockets(direction).1;
        while let Some(item) = queue.recv().await {
            match item {
                Item::Bytes { due, bytes } => {
                    tokio::time::sleep_until(due).await;
                    self.no_blackhole(direction).await;
                    self.write_bytes(direction, socket, &bytes).await?;
                }
                Item::Hold(number) => {
                    // The proxy keeps the other end of this for as long as there are connections.
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

    /// A blackhole keeps its data: a real system would send the data again, and a receiver that waits long enough would
    /// get it.
    async fn no_blackhole(&self, direction: Direction) {
        let mut flows = self.shared.flows.subscribe();
        let _ = flows.wait_for(|flows| !flows[direction as usize].is_blackhole).await;
    }

    async fn write_bytes(&self, direction: Direction, socket: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        if !self.shared.flows.borrow()[direction as usize].is_sliced {
            return write_all(socket, bytes).await;
        }
        for piece in bytes.chunks(bytes.len().div_ceil(MOST_PIECES).max(1)) {
            write_all(socket, piece).await?;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }
}

/// The receiving task may have ended; then the item is not needed.
fn push(queue: &UnboundedSender<Item>, item: Item) {
    let _ = queue.send(item);
}

/// Appends the bytes that have arrived. Returns whether more may follow.
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

/// Reads and drops all bytes until the connection ends.
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
