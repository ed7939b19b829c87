#![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::Duration;

use super::*;
use crate::{Data, Losing};

fn is_left_out() -> bool {
    crate::left_out("zookeeper").inspect(|reason| eprintln!("zookeeper: {reason}")).is_some()
}

#[tokio::test]
async fn a_server_answers_and_ends_with_its_handle() {
    if is_left_out() {
        return;
    }
    let server = ZooKeeperServer::start().await.unwrap();
    let address = server.address();
    assert_eq!(server.url(), format!("zookeeper://{address}/locks"));
    assert_eq!(server.role().await, Ok("standalone".to_owned()));
    assert_eq!(server.word("ruok").await.unwrap(), "imok");
    assert!(server.figures().await.unwrap().contains_key("zk_watch_count"));
    assert!(fs::read_to_string(server.log()).unwrap().contains("Starting server"));
    let folder = server.place.folder.path().to_owned();
    drop(server);
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert!(!folder.exists());
}

#[tokio::test]
async fn nodes_are_made_looked_at_and_deleted() {
    if is_left_out() {
        return;
    }
    let server = ZooKeeperServer::start().await.unwrap();
    assert_eq!(server.children("/a/b").await, Ok(None));
    assert_eq!(server.node("/a/b").await, Ok(None));
    assert_eq!(server.delete("/a/b").await, Ok(false));
    assert_eq!(server.create("/a/b", b"text", NodeKind::Lasting).await.unwrap(), "/a/b");
    let again = server.create("/a/b", b"", NodeKind::Lasting).await.unwrap_err().to_string();
    assert!(again.contains("there is a node /a/b already"), "{again}");
    let numbered = server.create("/a/b/n-", b"", NodeKind::Numbered).await.unwrap();
    assert_eq!(numbered, "/a/b/n-0000000000");
    server.create("/a/b/junk", b"", NodeKind::Container).await.unwrap();
    assert_eq!(server.children("/a/b").await.unwrap().unwrap(), ["n-0000000000", "junk"]);
    let node = server.node("/a/b").await.unwrap().unwrap();
    assert_eq!((node.data.as_slice(), node.version, node.children), (&b"text"[..], 0, 2));
    assert_eq!((node.session, node.created), (None, node.written));
    assert_eq!(server.write("/a/b", b"new").await, Ok(true));
    let node = server.node("/a/b").await.unwrap().unwrap();
    assert_eq!((node.data.as_slice(), node.version), (&b"new"[..], 1));
    assert!(node.written > node.created);
    assert_eq!(server.delete("/a/b/junk").await, Ok(true));
    let refusal = server.delete("/a/b").await.unwrap_err().to_string();
    assert!(refusal.contains("/a/b was refused with the error -111"), "{refusal}");
}

#[tokio::test]
async fn access_lists_do_not_bind_the_fixture() {
    if is_left_out() {
        return;
    }
    let server = ZooKeeperServer::start().await.unwrap();
    server.create("/closed", b"", NodeKind::Lasting).await.unwrap();
    let nobody = Access::new().grant("cdrwa", "digest", "nobody:x");
    server.set_access("/closed", &nobody).await.unwrap();
    let stranger = ephemeral_at(server.plain_address(), "/closed/e").await;
    assert!(stranger.unwrap_err().to_string().contains("-102"));
    server.create("/closed/child", b"", NodeKind::Lasting).await.unwrap();
    assert_eq!(server.children("/closed").await.unwrap().unwrap(), ["child"]);
}

/// Creates a node that ends with the session of a client, which sends nothing from then on.
async fn ephemeral_at(address: SocketAddr, path: &str) -> Outcome<Visit> {
    let mut visit = Visit::stranger(address).await?;
    visit.create_ephemeral(path).await?;
    Ok(visit)
}

#[tokio::test]
async fn a_session_of_another_client_is_closed_with_its_nodes() {
    if is_left_out() {
        return;
    }
    let server = ZooKeeperServer::start().await.unwrap();
    let client = ephemeral_at(server.address(), "/e").await.unwrap();
    let session = server.node("/e").await.unwrap().unwrap().session.unwrap();
    assert_eq!(server.close_session(session).await, Ok(true));
    assert_eq!(server.node("/e").await, Ok(None));
    assert_eq!(server.close_session(session).await, Ok(false));
    assert_eq!(server.close_session(7).await, Ok(false));
    drop(client);
}

/// This is what its client does when it connects again in time: the session is closed, but the request that closed it
/// gets no answer.
#[tokio::test]
async fn a_session_is_closed_also_where_the_answer_is_lost() {
    if is_left_out() {
        return;
    }
    let server = ZooKeeperServer::start().await.unwrap();
    let proxy = server.proxy().unwrap();
    for lost in [ZooKeeperRequest::Close, ZooKeeperRequest::Connect] {
        let client = ephemeral_at(server.address(), "/e").await.unwrap();
        let session = server.node("/e").await.unwrap().unwrap().session.unwrap();
        assert_eq!(server.knows_session(session).await, Ok(true));
        proxy.lose_reply(lost, Losing::Cut);
        assert_eq!(server.close_session_at(proxy.address(), session).await, Ok(true), "{lost:?}");
        assert_eq!((server.node("/e").await, server.prolong_session(session).await), (Ok(None), Ok(false)));
        drop(client);
    }
    // Twice for each, and once more if a busy server was slow.
    assert!(proxy.requests(ZooKeeperRequest::Connect) >= 4);
}

#[tokio::test]
async fn a_restart_keeps_or_loses_what_was_written() {
    if is_left_out() {
        return;
    }
    let server = ZooKeeperServer::start().await.unwrap();
    let (pid, address) = (server.pid(), server.address());
    server.create("/k", b"v", NodeKind::Lasting).await.unwrap();
    server.kill().unwrap();
    assert!(server.children("/k").await.unwrap_err().to_string().contains("refused"));
    server.restart(Data::Kept).await.unwrap();
    assert_eq!(server.node("/k").await.unwrap().unwrap().data, b"v");
    server.restart(Data::Lost).await.unwrap();
    assert_eq!(server.node("/k").await, Ok(None));
    assert_ne!(server.pid(), pid);
    assert_eq!(server.address(), address);
}

#[tokio::test]
async fn a_stopped_server_answers_when_it_runs_on() {
    if is_left_out() {
        return;
    }
    let server = ZooKeeperServer::start().await.unwrap();
    server.stop().unwrap();
    let mut answer = std::pin::pin!(server.node("/"));
    let early = tokio::time::timeout(Duration::from_millis(200), &mut answer).await;
    assert!(early.is_err(), "a stopped server answered {early:?}");
    server.resume().unwrap();
    assert!(answer.await.unwrap().is_some());
}

#[tokio::test]
async fn a_wrong_setting_is_reported_with_the_log() {
    if is_left_out() {
        return;
    }
    let options = ServerOptions::new().setting("tickTime", "soon");
    let failure = ZooKeeperServer::start_with(options).await.unwrap_err().to_string();
    assert!(failure.contains("soon"), "{failure}");
}

#[tokio::test]
async fn containers_are_removed_after_their_children() {
    if is_left_out() {
        return;
    }
    let options = ServerOptions::new().property("znode.container.checkIntervalMs", "50");
    let server = ZooKeeperServer::start_with(options).await.unwrap();
    server.create("/c", b"", NodeKind::Container).await.unwrap();
    server.create("/c/child", b"", NodeKind::Lasting).await.unwrap();
    assert_eq!(server.delete("/c/child").await, Ok(true));
    let gone = async { while server.node("/c").await.unwrap().is_some() {} };
    tokio::time::timeout(Duration::from_mins(1), gone).await.unwrap();
}

#[tokio::test]
async fn tls_is_spoken_beside_plain_text() {
    if is_left_out() {
        return;
    }
    let options = ServerOptions::new().tls_with_client_certificates().user("me", "se/c:ret", &["digest"]);
    let server = ZooKeeperServer::start_with(options).await.unwrap();
    assert_ne!(server.address(), server.plain_address());
    server.create("/a", b"", NodeKind::Lasting).await.unwrap();
    let url = server.url();
    assert!(url.starts_with("zookeeper://me:se%2Fc%3Aret@127.0.0.1:"), "{url}");
    assert!(url.contains("/locks?ca=/") && url.contains("&cert=/") && url.contains("&key=/"), "{url}");
    let hello = |arguments: &[&str]| {
        let files = server.certificates();
        let output = std::process::Command::new("openssl")
            .args(["s_client", "-brief", "-verify_return_error", "-connect"])
            .arg(server.address().to_string())
            .arg("-CAfile")
            .arg(&files.authority)
            .args(arguments)
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let client = &server.certificates().client;
    let (certificate, key) = (client.certificate.display().to_string(), client.key.display().to_string());
    let known = hello(&["-cert", &certificate, "-key", &key]);
    assert!(known.contains("Verification: OK"), "{known}");
}

#[tokio::test]
async fn users_of_sasl_are_known_to_the_server() {
    if is_left_out() {
        return;
    }
    let options = ServerOptions::new().user("app", "secret", &["sasl"]).user("other", "word", &["sasl"]);
    let server = ZooKeeperServer::start_with(options).await.unwrap();
    let address = server.address();
    assert_eq!(server.url(), format!("zookeeper://app:secret@{address}/locks?auth=sasl"));
    let url = server.url_of(&[address, address], "/mine", &[("session_timeout", "4s")]);
    let hosts = format!("{address},{address}");
    assert_eq!(url, format!("zookeeper://app:secret@{hosts}/mine?auth=sasl&session_timeout=4s"));
    let log = fs::read_to_string(server.log()).unwrap();
    assert!(log.contains("Server successfully logged in"), "{log}");
}

#[tokio::test]
async fn a_proxy_knows_what_passes() {
    if is_left_out() {
        return;
    }
    let server = ZooKeeperServer::start().await.unwrap();
    let proxy = server.proxy().unwrap();
    let mut client = ephemeral_at(proxy.address(), "/e").await.unwrap();
    client.ask(GET_CHILDREN, "/", Writer::default().bool(false), 0).await.unwrap();
    let counts = [ZooKeeperRequest::Connect, ZooKeeperRequest::Create, ZooKeeperRequest::List];
    assert_eq!(counts.map(|request| proxy.requests(request)), [1, 1, 1]);
    proxy.lose_reply(ZooKeeperRequest::Create, Losing::Cut);
    client.create_ephemeral("/done").await.unwrap_err();
    assert!(server.node("/done").await.unwrap().is_some());
    let mut client = ephemeral_at(proxy.address(), "/f").await.unwrap();
    proxy.lose_request(ZooKeeperRequest::Create, Losing::Cut);
    client.create_ephemeral("/not done").await.unwrap_err();
    assert_eq!(server.node("/not done").await, Ok(None));
}

/// All checks in one test, because starting the three takes a while.
#[tokio::test]
async fn an_ensemble_has_a_leader_as_long_as_most_of_it_is_there() {
    if is_left_out() {
        return;
    }
    let ensemble = ZooKeeperEnsemble::start().await.unwrap();
    let first = ensemble.leader().await.unwrap();
    let others = ensemble.others(first);
    ensemble.member(others[0]).create("/a", b"x", NodeKind::Lasting).await.unwrap();
    assert_eq!(ensemble.member(first).node("/a").await.unwrap().unwrap().data, b"x");

    // No member has ended: the others find another leader, because they do not hear from this one.
    ensemble.isolate(first);
    let second = ensemble.leader_among(&others).await.unwrap();
    ensemble.member(second).create("/b", b"", NodeKind::Lasting).await.unwrap();
    until("the deposed one has noticed", async || ensemble.member(first).role().await.is_err()).await;
    ensemble.heal();
    until("the deposed one follows", async || {
        ensemble.member(first).role().await == Ok("follower".to_owned())
    })
    .await;
    until("it has what it missed", async || ensemble.member(first).node("/b").await.unwrap().is_some()).await;

    // Connections that end are noticed immediately.
    let others = ensemble.others(second);
    ensemble.sever(second, others[0]);
    until("the parted one serves nobody", async || ensemble.member(others[0]).role().await.is_err()).await;
    ensemble.heal();
    until("it follows again", async || ensemble.member(others[0]).role().await == Ok("follower".to_owned()))
        .await;

    ensemble.member(second).kill().unwrap();
    let third = ensemble.leader_among(&others).await.unwrap();
    ensemble.member(second).restart(Data::Kept).await.unwrap();
    assert_eq!(ensemble.member(second).role().await, Ok("follower".to_owned()));
    ensemble.member(third).stop().unwrap();
    ensemble.leader_among(&ensemble.others(third)).await.unwrap();
    ensemble.member(third).resume().unwrap();
    until("the late one follows", async || ensemble.member(third).role().await == Ok("follower".to_owned()))
        .await;
}

async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "{what}: not so for a long time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
