//! Direct access to a server for tests: a client with all rights that is independent of the one under test.
//!
//! It implements the protocol itself, so that a bug of the client library cannot hide in the fixture too.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::jute::{Reader, Writer};
use super::node::{Access, NodeKind};
use crate::proxy::Malformed;
use crate::{Failure, Outcome};

/// The user that may do everything, and the digest for the servers' configuration: of this name and password, as
/// ZooKeeper calculates it.
const SUPER_LOGIN: &str = "super:distlock-fixture";
pub(super) const SUPER_DIGEST: &str = "super:qQsBS+uvA3L0kHnlmxAJ3AfT780=";

/// In milliseconds. Short, so that a session of the fixture that was left open ends soon.
const SESSION: i32 = 10_000;

pub(super) const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;

/// What a request asks for.
pub(super) const CREATE: i32 = 1;
pub(super) const DELETE: i32 = 2;
pub(super) const GET_DATA: i32 = 4;
pub(super) const SET_DATA: i32 = 5;
pub(super) const SET_ACCESS: i32 = 7;
pub(super) const GET_CHILDREN: i32 = 8;
pub(super) const AUTHENTICATE: i32 = 100;
pub(super) const CREATE_CONTAINER: i32 = 19;
pub(super) const CLOSE: i32 = -11;

/// The numbers of the first and of the last request of a session.
const AUTHENTICATION: i32 = -4;
const FAREWELL: i32 = i32::MAX;

pub(super) const ANY_VERSION: i32 = -1;

/// A session with all rights, for one request after the other.
#[derive(Debug)]
pub(super) struct Visit {
    stream: TcpStream,
    asked: i32,
}

impl Visit {
    /// Opens a session, does `what` in it, and closes it.
    pub(super) async fn pay<T>(
        address: SocketAddr,
        what: impl AsyncFnOnce(&mut Self) -> Outcome<T>,
    ) -> Outcome<T> {
        let mut visit = Self::stranger(address).await?;
        let login = Writer::default().int(AUTHENTICATION).int(AUTHENTICATE);
        let login = login.int(0).text("digest").text(SUPER_LOGIN);
        visit.stream.write_all(&login.message()).await?;
        visit.done(AUTHENTICATION).await?;
        let outcome = what(&mut visit).await?;
        let farewell = Writer::default().int(FAREWELL).int(CLOSE);
        visit.stream.write_all(&farewell.message()).await?;
        visit.done(FAREWELL).await?;
        Ok(outcome)
    }

    /// Opens a session without any rights.
    pub(super) async fn stranger(address: SocketAddr) -> Outcome<Self> {
        let mut visit = Self::open(address, &connect(0, &[0; 16], SESSION)).await?;
        crate::ensure!(visit.connected().await? != 0, "no session was given");
        Ok(visit)
    }

    /// Closes the session of another client, as that client could. Returns whether it still existed. If a client
    /// connects in that session meanwhile, the server ends this connection: then this fails, whether the session was
    /// closed or not.
    pub(super) async fn close_session(address: SocketAddr, session: i64) -> Outcome<bool> {
        let close = Writer::default().int(1).int(CLOSE).message();
        let hello = [connect(session, &password(session), SESSION), close].concat();
        let mut visit = Self::open(address, &hello).await?;
        if visit.connected().await? == 0 {
            return Ok(false);
        }
        visit.done(1).await.map(|()| true)
    }

    /// Extends the session of a client that is away by the longest time that the server allows, from now on. Returns
    /// whether it still existed.
    pub(super) async fn prolong_session(address: SocketAddr, session: i64) -> Outcome<bool> {
        let mut visit = Self::open(address, &connect(session, &password(session), i32::MAX)).await?;
        Ok(visit.connected().await? != 0)
    }

    async fn open(address: SocketAddr, hello: &[u8]) -> Outcome<Self> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        stream.write_all(hello).await?;
        Ok(Self { stream, asked: 0 })
    }

    /// Returns the session that the server assigned; 0 for none.
    async fn connected(&mut self) -> Outcome<i64> {
        let answer = self.message().await?;
        let mut reader = Reader(&answer);
        // The version, and the session timeout.
        let _ = (reader.int()?, reader.int()?);
        Ok(reader.long()?)
    }

    async fn message(&mut self) -> Outcome<Vec<u8>> {
        let length = usize::try_from(self.stream.read_i32().await?).map_err(|_| Malformed)?;
        let mut message = vec![0; length];
        self.stream.read_exact(&mut message).await?;
        Ok(message)
    }

    /// Asks for this at a node. Returns the answer; `None` for the error that is `expected`.
    pub(super) async fn ask(
        &mut self,
        operation: i32,
        path: &str,
        rest: Writer,
        expected: i32,
    ) -> Outcome<Option<Vec<u8>>> {
        self.asked += 1;
        let front = Writer::default().int(self.asked).int(operation).text(path);
        let message = Writer::default().bytes(&[front.0, rest.0].concat()).0;
        self.stream.write_all(&message).await?;
        match self.answer_to(self.asked).await? {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error == expected => Ok(None),
            Err(error) => {
                let what = format!("operation {operation} at {path} was refused with the error {error}");
                Err(Failure::new(what))
            }
        }
    }

    /// Returns what answers the request with this number, or the server's error.
    async fn answer_to(&mut self, number: i32) -> Outcome<Result<Vec<u8>, i32>> {
        loop {
            let message = self.message().await?;
            let mut reader = Reader(&message);
            let (answered, _, error) = (reader.int()?, reader.long()?, reader.int()?);
            if answered == number {
                return Ok(if error == 0 { Ok(reader.rest().to_vec()) } else { Err(error) });
            }
        }
    }

    async fn done(&mut self, number: i32) -> Outcome {
        let done = self.answer_to(number).await?.map(drop);
        done.map_err(|error| Failure::new(format!("the fixture was refused with the error {error}")))
    }

    /// Returns the path of the new node; `None` if the node already existed.
    pub(super) async fn create_one(
        &mut self,
        path: &str,
        data: &[u8],
        kind: NodeKind,
    ) -> Outcome<Option<String>> {
        let operation = if kind == NodeKind::Container { CREATE_CONTAINER } else { CREATE };
        let request = Access::anybody().write(Writer::default().bytes(data)).int(kind as i32);
        let answer = self.ask(operation, path, request, NODE_EXISTS).await?;
        Ok(answer.map(|answer| Reader(&answer).text()).transpose()?)
    }

    /// Creates a node that ends with this session.
    #[cfg(test)]
    pub(super) async fn create_ephemeral(&mut self, path: &str) -> Outcome {
        let request = Access::anybody().write(Writer::default().bytes(b"")).int(1);
        self.ask(CREATE, path, request, 0).await.map(drop)
    }
}

fn connect(session: i64, password: &[u8; 16], timeout: i32) -> Vec<u8> {
    // The version, the last change seen, and that a server without its ensemble is not acceptable.
    Writer::default().int(0).long(0).int(timeout).long(session).bytes(password).bool(false).message()
}

/// Returns the password that a server gives to the client of a session: the first numbers of Java's generator, from a
/// seed that ZooKeeper derives from the session with a constant.
fn password(session: i64) -> [u8; 16] {
    const SECRET: u64 = 0xB341_5C00;
    const FACTOR: u64 = 0x0005_DEEC_E66D;
    const MASK: u64 = (1 << 48) - 1;
    let mut seed = (session.cast_unsigned() ^ SECRET ^ FACTOR) & MASK;
    let mut password = [0; 16];
    for number in password.chunks_exact_mut(4) {
        seed = seed.wrapping_mul(FACTOR).wrapping_add(0xB) & MASK;
        let [_, _, high @ .., _, _] = seed.to_be_bytes();
        let mut little = high;
        little.reverse();
        number.copy_from_slice(&little);
    }
    password
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of Java's `new Random(42 ^ 0xB3415C00L).nextBytes(…)`.
    #[test]
    fn the_password_is_the_one_that_java_makes() {
        assert_eq!(password(42), JAVA_SAYS);
    }

    const JAVA_SAYS: [u8; 16] = [200, 19, 238, 73, 86, 32, 195, 166, 135, 148, 239, 39, 162, 57, 232, 169];
}
