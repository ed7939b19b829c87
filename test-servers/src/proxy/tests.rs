#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Instant;

use lock_core::Operation;

use super::*;

/// Longer than any step here takes.
const LONG: Duration = Duration::from_mins(1);

/// How long to check that nothing happens that would happen immediately if something were wrong.
const SHORT: Duration = Duration::from_millis(150);

/// A server that answers each line with the same line, and reports when one of its connections has ended.
struct Echo {
    address: SocketAddr,
    ended: mpsc::Receiver<()>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let end = end.clone();
                std::thread::spawn(move || {
                    echo(stream);
                    let _ = end.send(());
                });
            }
        });
        Self { address, ended }
    }
}

fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 1024];
    while let Ok(count) = stream.read(&mut buffer) {
        if count == 0 || stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

/// Lines, each of which is a request; those that begin with `r` are renewals. The server's lines answer them in order.
struct Lines;

fn line_length(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n').map(|position| position + 1)
}

impl Conversation for Lines {
    fn request(&mut self, bytes: &[u8]) -> Option<Request> {
        let length = line_length(bytes)?;
        let subject = bytes.starts_with(b"r").then_some(Operation::Renew.into());
        Some(Request { length, number: Some(0), subject })
    }

    fn reply(&mut self, bytes: &[u8]) -> Option<Reply> {
        let length = line_length(bytes)?;
        let is_unknown = bytes.starts_with(b"r?");
        Some(Reply { length, answers: Some(0), is_understood: !is_unknown })
    }
}

struct Place {
    echo: Echo,
    proxy: TcpProxy,
}

fn place() -> Place {
    let echo = Echo::start();
    let proxy = TcpProxy::with_conversation(echo.address, || Box::new(Lines)).unwrap();
    Place { echo, proxy }
}

impl Place {
    fn client(&self) -> TcpStream {
        let client = TcpStream::connect(self.proxy.address()).unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        client
    }
}

fn say(mut client: &TcpStream, text: &str) {
    client.write_all(text.as_bytes()).unwrap();
}

/// Reads the next `length` bytes.
fn hear(mut client: &TcpStream, length: usize) -> String {
    let mut bytes = vec![0; length];
    client.read_exact(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn asked_and_answered(client: &TcpStream, text: &str) {
    say(client, text);
    assert_eq!(hear(client, text.len()), text);
}

/// Checks that nothing arrives for a while.
fn hears_nothing(mut client: &TcpStream) {
    client.set_read_timeout(Some(SHORT)).unwrap();
    let error = client.read(&mut [0; 1]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    client.set_read_timeout(Some(LONG)).unwrap();
}

/// Reads to the end of the connection: returns what came before it, and whether it was reset.
fn end(mut client: &TcpStream) -> (String, bool) {
    let mut bytes = Vec::new();
    let ended = client.read_to_end(&mut bytes);
    let was_reset = ended.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
    assert!(ended.is_ok() || was_reset, "{ended:?}");
    (String::from_utf8(bytes).unwrap(), was_reset)
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not so within {LONG:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_said_is_passed_on_and_the_end_too() {
    let place = place();
    let client = place.client();
    asked_and_answered(&client, "hello\n");
    assert_eq!(place.proxy.connections(), 1);
    assert_eq!(place.proxy.connected_clients(), 1);
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(end(&client), (String::new(), false));
    place.echo.ended.recv_timeout(LONG).unwrap();
    eventually("the connection is forgotten", || place.proxy.connections() == 0);
}

#[test]
fn a_protocol_that_is_not_known_is_passed_on() {
    let echo = Echo::start();
    let proxy = TcpProxy::start(echo.address).unwrap();
    let client = TcpStream::connect(proxy.address()).unwrap();
    asked_and_answered(&client, "no line");
    assert_eq!(proxy.requests(Operation::Renew), 0);
}

#[test]
fn a_cut_ends_both_sides_and_takes_new_connections() {
    let place = place();
    let client = place.client();
    asked_and_answered(&client, "hello\n");
    place.proxy.cut();
    assert_eq!(end(&client).0, "");
    place.echo.ended.recv_timeout(LONG).unwrap();
    asked_and_answered(&place.client(), "again\n");
}

#[test]
fn a_cut_at_the_server_is_not_heard_of_until_it_is_healed() {
    let place = place();
    let client = place.client();
    asked_and_answered(&client, "hello\n");
    place.proxy.cut_at_server();
    place.echo.ended.recv_timeout(LONG).unwrap();
    say(&client, "anybody\n");
    hears_nothing(&client);
    asked_and_answered(&place.client(), "again\n");
    place.proxy.heal();
    assert_eq!(end(&client).0, "");
}

#[test]
fn no_connection_is_taken_while_the_proxy_is_severed() {
    let place = place();
    let client = place.client();
    asked_and_answered(&client, "hello\n");
    for _ in 0..3 {
        place.proxy.sever();
        assert_eq!(end(&client).0, "");
        eventually("connections are refused", || {
            TcpStream::connect(place.proxy.address())
                .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        });
        place.proxy.heal();
        eventually("connections are taken", || TcpStream::connect(place.proxy.address()).is_ok());
    }
    asked_and_answered(&place.client(), "again\n");
}

#[test]
fn a_blackhole_swallows_one_direction_until_it_is_healed() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let place = place();
        let client = place.client();
        asked_and_answered(&client, "hello\n");
        place.proxy.blackhole(direction);
        say(&client, "anybody\n");
        hears_nothing(&client);
        // The same for a client that connects now: the proxy accepts it, and it receives nothing.
        let late = place.client();
        say(&late, "nobody\n");
        hears_nothing(&late);
        place.proxy.heal();
        assert_eq!(hear(&client, 8), "anybody\n");
        assert_eq!(hear(&late, 7), "nobody\n");
    }
}

#[test]
fn a_blackhole_to_the_client_lets_requests_through() {
    let place = place();
    let client = place.client();
    place.proxy.blackhole(Direction::ToClient);
    say(&client, "renew\n");
    eventually("the request is seen", || place.proxy.requests(Operation::Renew) == 1);
    client.shutdown(std::net::Shutdown::Write).unwrap();
    place.echo.ended.recv_timeout(LONG).unwrap();
}

#[test]
fn a_delay_is_waited_for_each_way() {
    let place = place();
    let client = place.client();
    let delay = Duration::from_millis(60);
    place.proxy.delay(Direction::ToServer, delay);
    place.proxy.delay(Direction::ToClient, delay);
    let began = Instant::now();
    asked_and_answered(&client, "hello\n");
    assert!(began.elapsed() >= delay * 2, "{:?}", began.elapsed());
}

#[test]
fn slices_come_one_after_the_other() {
    let place = place();
    place.proxy.slice(Direction::ToClient);
    let mut client = place.client();
    let text = format!("{}\n", "a".repeat(79));
    say(&client, &text);
    let (mut heard, mut reads) = (0, 0);
    while heard < text.len() {
        heard += client.read(&mut [0; 1024]).unwrap();
        reads += 1;
    }
    assert!(reads > 1, "all of it came at once");
}

#[test]
fn the_reply_to_the_next_request_of_an_operation_is_lost() {
    for (losing, comes) in [(Losing::Cut, ""), (Losing::ResetHalfway, "ren")] {
        let place = place();
        let (client, other) = (place.client(), place.client());
        place.proxy.lose_reply(Operation::Renew, losing);
        asked_and_answered(&client, "another\n");
        asked_and_answered(&other, "another\n");
        say(&client, "renew\n");
        let (heard, was_reset) = end(&client);
        assert_eq!((heard.as_str(), was_reset), (comes, losing == Losing::ResetHalfway));
        // Only that reply.
        asked_and_answered(&other, "renew\n");
        assert_eq!(place.proxy.requests(Operation::Renew), 2);
    }
}

#[test]
fn silence_keeps_the_connection() {
    let place = place();
    let client = place.client();
    place.proxy.lose_reply(Operation::Renew, Losing::Silence);
    say(&client, "first\nrenew\nafter\n");
    assert_eq!(hear(&client, 6), "first\n");
    hears_nothing(&client);
    place.proxy.heal();
    hears_nothing(&client);
    assert_eq!(place.proxy.connections(), 1);
    drop(client);
    place.echo.ended.recv_timeout(LONG).unwrap();
    eventually("the connection is forgotten", || place.proxy.connections() == 0);
}

#[test]
fn what_was_not_carried_out_does_not_count() {
    let place = place();
    let client = place.client();
    place.proxy.lose_reply(Operation::Renew, Losing::Cut);
    asked_and_answered(&client, "r? what\n");
    say(&client, "renew\n");
    assert_eq!(end(&client).0, "");
}

#[tokio::test]
async fn a_reply_is_kept_back_until_it_is_let_go() {
    let place = place();
    let (client, other) = (place.client(), place.client());
    for _ in 0..3 {
        place.proxy.hold_reply(Operation::Renew);
        say(&client, "renew\nafter\n");
        tokio::time::timeout(LONG, place.proxy.is_held()).await.unwrap();
        hears_nothing(&client);
        asked_and_answered(&other, "renew\n");
        place.proxy.let_go();
        assert_eq!(hear(&client, 12), "renew\nafter\n");
    }
    // A reply that was released before it arrived is not held back.
    place.proxy.hold_reply(Operation::Renew);
    place.proxy.let_go();
    asked_and_answered(&client, "renew\n");
}

#[test]
fn the_end_of_the_proxy_is_the_end_of_its_connections() {
    let Place { echo, proxy } = place();
    let client = TcpStream::connect(proxy.address()).unwrap();
    asked_and_answered(&client, "hello\n");
    drop(proxy);
    assert_eq!(end(&client).0, "");
    echo.ended.recv_timeout(LONG).unwrap();
}

#[test]
fn a_request_is_lost_before_the_server_has_it() {
    for losing in [Losing::Cut, Losing::ResetHalfway] {
        let place = place();
        let (client, other) = (place.client(), place.client());
        place.proxy.lose_request(Operation::Renew, losing);
        asked_and_answered(&client, "another\n");
        asked_and_answered(&other, "another\n");
        say(&client, "renew\n");
        let heard = end(&client).0;
        assert!(!heard.contains('\n'), "{heard:?}");
        place.echo.ended.recv_timeout(LONG).unwrap();
        // Only that request.
        asked_and_answered(&other, "renew\n");
    }
}

#[test]
fn a_request_is_lost_in_silence() {
    let place = place();
    let client = place.client();
    place.proxy.lose_request(Operation::Renew, Losing::Silence);
    say(&client, "first\nrenew\nafter\n");
    assert_eq!(hear(&client, 6), "first\n");
    place.proxy.heal();
    hears_nothing(&client);
    assert_eq!(place.proxy.connections(), 1);
    drop(client);
    place.echo.ended.recv_timeout(LONG).unwrap();
}

#[tokio::test]
async fn a_request_is_kept_back_until_it_is_let_go() {
    let place = place();
    let client = place.client();
    place.proxy.hold_request(Operation::Renew);
    say(&client, "first\nrenew\nafter\n");
    tokio::time::timeout(LONG, place.proxy.is_held()).await.unwrap();
    assert_eq!(hear(&client, 6), "first\n");
    hears_nothing(&client);
    place.proxy.let_go();
    assert_eq!(hear(&client, 12), "renew\nafter\n");
}

#[test]
fn connections_stay_with_the_server_that_they_began_with() {
    let (one, other) = (place(), Echo::start());
    let client = one.client();
    asked_and_answered(&client, "hello\n");
    one.proxy.turn_to(other.address);
    let late = one.client();
    asked_and_answered(&late, "hello\n");
    drop(late);
    other.ended.recv_timeout(LONG).unwrap();
    asked_and_answered(&client, "still here\n");
    drop(client);
    one.echo.ended.recv_timeout(LONG).unwrap();
}
