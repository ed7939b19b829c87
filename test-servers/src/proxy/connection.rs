//! One connection of a proxy: what it reads on one side it writes on the other, later, in part, or not at all.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::time::Instant;

use super::conversation::Conversation;
use super::shared::{Direction, Ends, Fault, Losing, Part, Shared, Way};

/// The maximum number of pieces into which data that arrives at once is sliced, with a pause after each.
const MOST_PIECES: usize = 100;
const PAUSE: Duration = Duration::from_millis(1);

/// What to write next.
enum Item {
    /// What is due at this time.
    Bytes(Instant, Vec<u8>),
    /// Nothing more until the hold with this number is over.
    Hold(u64),
    /// The sending side has closed its direction.
    End,
    Break(Ended),
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
    /// The faults for the replies to requests that have not been answered, the oldest first, by the number that they share.
    open: HashMap<u64, VecDeque<Option<Fault>>>,
}

struct Connection {
    ends: Arc<Ends>,
    state: Mutex<State>,
    shared: Arc<Shared>,
}

/// Forwards data between `client` and the server until one of them ends, or all connections are cut.
pub(super) async fn serve(client: TcpStream, target: SocketAddr, shared: Arc<Shared>) -> io::Result<()> {
    // Without a server, the client sees its connection end.
    let server = TcpStream::connect(target).await?;
    let (client, client_end) = with_end(client)?;
    let (server, server_end) = with_end(server)?;
    let is_closed_by_client = watch::Sender::default();
    let ends = Arc::new(Ends { client: client_end, server: server_end, is_closed_by_client });
    let state = Mutex::new(State { conversation: (shared.make_conversation)(), open: HashMap::new() });
    let connection = Connection { ends: Arc::clone(&ends), state, shared: Arc::clone(&shared) };
    // The proxy may accept no more connections meanwhile.
    let mut links = shared.links.lock();
    if *shared.is_open.borrow() {
        let task = tokio::spawn(async move { connection.run(client, server).await });
        links.push((ends, task.abort_handle()));
    }
    Ok(())
}

/// Returns the socket together with the means to end it while it is used.
fn with_end(socket: TcpStream) -> io::Result<(TcpStream, std::net::TcpStream)> {
    socket.set_nodelay(true)?;
    let socket = socket.into_std()?;
    let end = socket.try_clone()?;
    Ok((TcpStream::from_std(socket)?, end))
}

impl Connection {
    async fn run(&self, mut client: TcpStream, mut server: TcpStream) {
        let (to_server, from_client) = mpsc::unbounded_channel();
        let (to_client, from_server) = mpsc::unbounded_channel();
        let (client_reader, client_writer) = client.split();
        let (server_reader, server_writer) = server.split();
        let ended = tokio::try_join!(
            self.read(client_reader, Direction::ToServer, to_server),
            self.write(server_writer, Direction::ToServer, from_client),
            self.read(server_reader, Direction::ToClient, to_client),
            self.write(client_writer, Direction::ToClient, from_server),
        );
        if let Err(Ended::Reset) = ended {
            for socket in [&client, &server] {
                // If this fails, the connection is closed instead.
                let _ = socket.set_zero_linger();
            }
        }
        self.shared.links.lock().retain(|(ends, _)| !Arc::ptr_eq(ends, &self.ends));
    }

    async fn read(
        &self,
        mut socket: ReadHalf<'_>,
        direction: Direction,
        queue: UnboundedSender<Item>,
    ) -> Result<(), Ended> {
        let is_to_server = direction == Direction::ToServer;
        let mut bytes = Vec::new();
        while socket.read_buf(&mut bytes).await? > 0 {
            while let Some((length, way)) =
                if is_to_server { self.take_request(&bytes) } else { self.take_reply(&bytes) }
            {
                let message: Vec<_> = bytes.drain(..length).collect();
                match way {
                    None => {}
                    Some(Way::Hold(number)) => {
                        push(&queue, Item::Hold(number));
                        self.shared.reached.send_modify(|reached| *reached = number.max(*reached));
                    }
                    Some(Way::Lose(Losing::Cut)) => {
                        push(&queue, Item::Break(Ended::Cut));
                        return Ok(());
                    }
                    Some(Way::Lose(Losing::ResetHalfway)) => {
                        self.pass(direction, &queue, message[..length / 2].to_vec());
                        push(&queue, Item::Break(Ended::Reset));
                        return Ok(());
                    }
                    Some(Way::Lose(Losing::Silence)) => {
                        tokio::io::copy(&mut socket, &mut tokio::io::sink()).await?;
                        if is_to_server {
                            break;
                        }
                        // The client does not learn that the server has ended the connection, either.
                        let mut is_closed = self.ends.is_closed_by_client.subscribe();
                        let _ = is_closed.wait_for(|is_closed| *is_closed).await;
                        return Ok(());
                    }
                }
                self.pass(direction, &queue, message);
            }
        }
        push(&queue, Item::End);
        if is_to_server {
            self.ends.is_closed_by_client.send_replace(true);
        }
        Ok(())
    }

    /// Returns the length of the first request and its fault, after recording the fault of its reply.
    fn take_request(&self, bytes: &[u8]) -> Option<(usize, Option<Way>)> {
        let mut state = self.state.lock();
        let request = state.conversation.request(bytes)?;
        let fault = request.subject.and_then(|subject| self.shared.note_request(subject));
        let own = fault.filter(|fault| fault.to == Part::Request);
        if let Some(number) = request.number {
            state.open.entry(number).or_default().push_back(fault.filter(|_| own.is_none()));
        }
        Some((request.length, own.map(|fault| fault.way)))
    }

    /// Returns the length of the first reply and its fault.
    fn take_reply(&self, bytes: &[u8]) -> Option<(usize, Option<Way>)> {
        let mut state = self.state.lock();
        let reply = state.conversation.reply(bytes)?;
        let fault = reply.answers.and_then(|number| state.open.get_mut(&number)?.pop_front()?);
        let Some(fault) = fault.filter(|_| !reply.is_understood) else {
            return Some((reply.length, fault.map(|fault| fault.way)));
        };
        // It is for the next one.
        self.shared.armed.lock().insert(0, fault);
        Some((reply.length, None))
    }

    fn pass(&self, direction: Direction, queue: &UnboundedSender<Item>, bytes: Vec<u8>) {
        let due = Instant::now() + self.shared.flows.borrow()[direction as usize].delay;
        push(queue, Item::Bytes(due, bytes));
    }

    async fn write(
        &self,
        mut socket: WriteHalf<'_>,
        direction: Direction,
        mut queue: UnboundedReceiver<Item>,
    ) -> Result<(), Ended> {
        while let Some(item) = queue.recv().await {
            match item {
                Item::Bytes(due, bytes) => {
                    // A timer that is due ends at the next millisecond.
                    if due > Instant::now() {
                        tokio::time::sleep_until(due).await;
                    }
                    self.no_blackhole(direction).await;
                    self.write_bytes(direction, &mut socket, &bytes).await?;
                }
                Item::Hold(number) => {
                    // The proxy keeps the other end of this for as long as there are connections.
                    let _ = self.shared.over.subscribe().wait_for(|over| *over >= number).await;
                }
                Item::End => {
                    self.no_blackhole(direction).await;
                    socket.shutdown().await?;
                }
                Item::Break(ended) => return Err(ended),
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

    async fn write_bytes(
        &self,
        direction: Direction,
        socket: &mut WriteHalf<'_>,
        bytes: &[u8],
    ) -> io::Result<()> {
        if !self.shared.flows.borrow()[direction as usize].is_sliced {
            return socket.write_all(bytes).await;
        }
        for piece in bytes.chunks(bytes.len().div_ceil(MOST_PIECES).max(1)) {
            socket.write_all(piece).await?;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }
}

/// The receiving task may have ended; then the item is not needed.
fn push(queue: &UnboundedSender<Item>, item: Item) {
    let _ = queue.send(item);
}
