//! A proxy that counts the requests to the server by kind, because the server itself does not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::io::{self, AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::connection::ZooKeeperUrl;
use crate::contender::Target;
use crate::failure::{Context, Outcome};
use crate::subject::RequestCounter;

type Counts = Arc<Mutex<BTreeMap<String, u64>>>;

/// Larger than any message that ZooKeeper accepts.
const LONGEST: u32 = 16 << 20;

pub(super) fn start(target: &Target) -> Outcome<Box<dyn RequestCounter>> {
    let servers = ZooKeeperUrl::of(target)?.servers;
    let server = servers.split(',').next().unwrap_or_default().to_owned();
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).context("a port for counting")?;
    listener.set_nonblocking(true).context("a port for counting")?;
    let address = listener.local_addr().context("a port for counting")?;
    let url = target.url.replacen(servers, &address.to_string(), 1);
    let counts = Counts::default();
    let (running, ended) = oneshot::channel::<()>();
    let runtime = Builder::new_current_thread().enable_all().build().context("a runtime")?;
    let serving = serve(listener, server, Arc::clone(&counts));
    let body = move || {
        runtime.block_on(async {
            tokio::select! {
                () = serving => (),
                _ = ended => (),
            }
        });
    };
    thread::Builder::new().name("tally".to_owned()).spawn(body).context("a thread")?;
    Ok(Box::new(Proxy { url, counts, _running: running }))
}

struct Proxy {
    url: String,
    counts: Counts,
    /// Dropping this ends the thread.
    _running: oneshot::Sender<()>,
}

impl RequestCounter for Proxy {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn requests(&self) -> BTreeMap<String, u64> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn serve(listener: std::net::TcpListener, server: String, counts: Counts) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(pass(client, server.clone(), Arc::clone(&counts)));
    }
}

/// Forwards until either side ends.
async fn pass(client: TcpStream, server: String, counts: Counts) -> io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    tokio::select! {
        counted = count(from_client, to_server, &counts) => counted,
        copied = io::copy(&mut from_server, &mut to_client) => copied.map(drop),
    }
}

/// A request begins with its length, a number and its kind. The first request of a connection has neither number nor
/// kind.
async fn count(mut input: OwnedReadHalf, mut output: OwnedWriteHalf, counts: &Counts) -> io::Result<()> {
    let mut is_first = true;
    loop {
        let length = input.read_u32().await?;
        if length > LONGEST {
            return Err(io::Error::other("this is no request"));
        }
        let mut frame = length.to_be_bytes().to_vec();
        (&mut input).take(u64::from(length)).read_to_end(&mut frame).await?;
        let kind = if is_first { "connect".to_owned() } else { kind(frame.get(8..).unwrap_or_default()) };
        is_first = false;
        *counts.lock().unwrap_or_else(PoisonError::into_inner).entry(kind).or_default() += 1;
        output.write_all(&frame).await?;
    }
}

/// Returns the kind of a request, from the field that contains it; a transaction has the kind of its first operation.
fn kind(request: &[u8]) -> String {
    let number = |at: usize| {
        let bytes = request.get(at..at + 4)?.try_into().ok()?;
        Some(i32::from_be_bytes(bytes))
    };
    match (number(0), number(4)) {
        (Some(14), Some(first)) => format!("multi({}…)", name(first)),
        (Some(kind), _) => name(kind),
        (None, _) => "nothing".to_owned(),
    }
}

fn name(kind: i32) -> String {
    let name = match kind {
        1 => "create",
        2 => "delete",
        3 => "exists",
        4 => "getData",
        5 => "setData",
        6 => "getACL",
        7 => "setACL",
        8 => "getChildren",
        9 => "sync",
        11 => "ping",
        12 => "getChildren2",
        13 => "check",
        14 => "multi",
        15 => "create2",
        17 => "checkWatches",
        18 => "removeWatches",
        19 => "createContainer",
        22 => "multiRead",
        100 => "auth",
        101 | 105 => "setWatches",
        102 => "sasl",
        103 => "getEphemerals",
        106 => "addWatch",
        -11 => "closeSession",
        other => return format!("kind {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_called_by_what_it_does_first() {
        let request =
            |numbers: &[i32]| numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<_>>();
        assert_eq!(kind(&request(&[14, 13])), "multi(check…)");
        assert_eq!(kind(&request(&[8, 7])), "getChildren");
        assert_eq!(kind(&request(&[77])), "kind 77");
        assert_eq!(kind(&[]), "nothing");
    }
}
