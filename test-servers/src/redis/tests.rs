#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::Stdio;

use super::*;
use crate::Data;

fn is_left_out() -> bool {
    crate::left_out("redis").inspect(|reason| eprintln!("redis: {reason}")).is_some()
}

/// Returns the output of `redis-cli` for a URL of the server, or its error.
fn cli(arguments: &[&str]) -> String {
    let output = Command::new("redis-cli").args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).trim().to_owned()
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

#[tokio::test]
async fn a_server_answers_and_ends_with_its_handle() {
    if is_left_out() {
        return;
    }
    let server = RedisServer::start().await.unwrap();
    assert_eq!(server.command(&["SET", "k", "two words"]).await, Ok(text("OK")));
    let port = server.address().port().to_string();
    assert_eq!(cli(&["-p", &port, "GET", "k"]), "two words");
    assert_eq!(server.url(), format!("redis://127.0.0.1:{port}/0"));
    let refusal = server.command(&["NOSUCH"]).await.unwrap_err().to_string();
    assert!(refusal.contains("unknown command"), "{refusal}");
    let folder = server.place.folder.path().to_owned();
    drop(server);
    assert!(cli(&["-p", &port, "PING"]).contains("refused"));
    assert!(!folder.exists());
}

#[tokio::test]
async fn a_wrong_setting_is_reported_with_the_log() {
    if is_left_out() {
        return;
    }
    let options = ServerOptions::new().setting("no-such-setting", "1");
    let failure = RedisServer::start_with(options).await.unwrap_err().to_string();
    assert!(failure.contains("no-such-setting"), "{failure}");
}

#[tokio::test]
async fn users_are_let_in_and_kept_to_their_rules() {
    if is_left_out() {
        return;
    }
    let options = ServerOptions::new().user("app", "se/cret", &["~mine:* +get"]).setting("maxmemory", "5mb");
    let server = RedisServer::start_with(options).await.unwrap();
    let port = server.address().port().to_string();
    assert_eq!(server.url(), format!("redis://app:se%2Fcret@127.0.0.1:{port}/0"));
    let as_app = |words: &[&str]| {
        cli(&[&["-p", &port, "--no-auth-warning", "--user", "app", "-a", "se/cret"], words].concat())
    };
    assert_eq!(as_app(&["GET", "mine:k"]), "");
    assert!(as_app(&["GET", "k"]).contains("NOPERM"));
    assert!(as_app(&["SET", "mine:k", "v"]).contains("NOPERM"));
    assert!(cli(&["-p", &port, "GET", "mine:k"]).contains("NOAUTH"));
    let memory = server.command(&["CONFIG", "GET", "maxmemory"]).await.unwrap();
    assert_eq!(memory.items().get(1), Some(&text("5242880")));
}

#[tokio::test]
async fn a_password_is_asked_of_everybody() {
    if is_left_out() {
        return;
    }
    let server = RedisServer::start_with(ServerOptions::new().password("pw")).await.unwrap();
    let port = server.address().port().to_string();
    assert!(cli(&["-p", &port, "PING"]).contains("NOAUTH"));
    assert_eq!(cli(&["-p", &port, "--no-auth-warning", "-a", "pw", "PING"]), "PONG");
    assert!(server.url().starts_with("redis://:pw@127.0.0.1"), "{}", server.url());
    let socket = server.unix_socket().display().to_string();
    assert_eq!(server.unix_url(), format!("unix://:pw@{socket}?db=0"));
}

#[tokio::test]
async fn tls_is_spoken_with_certificates_of_its_own() {
    if is_left_out() {
        return;
    }
    let options = ServerOptions::new().tls_with_client_certificates();
    let server = RedisServer::start_with(options).await.unwrap();
    let files = server.certificates();
    let path = |path: &Path| path.display().to_string();
    let (authority, port) = (path(&files.authority), server.address().port().to_string());
    let client = [path(&files.client.certificate), path(&files.client.key)];
    let trusting = ["-p", &port, "--tls", "--cacert", &authority];
    let known = [&trusting[..], &["--cert", &client[0], "--key", &client[1]]].concat();
    assert_eq!(cli(&[&known[..], &["PING"]].concat()), "PONG");
    assert_ne!(cli(&[&trusting[..], &["PING"]].concat()), "PONG");
    assert_ne!(cli(&["-p", &port, "PING"]), "PONG");
    let url = server.url();
    assert!(url.starts_with("rediss://") && url.contains("?ca=") && url.contains("&key="), "{url}");
}

#[tokio::test]
async fn a_restart_keeps_or_loses_what_was_written() {
    if is_left_out() {
        return;
    }
    let server = RedisServer::start_with(ServerOptions::new().setting("appendonly", "yes")).await.unwrap();
    let (pid, address) = (server.pid(), server.address());
    server.command(&["SET", "k", "v"]).await.unwrap();
    server.restart(Data::Kept).await.unwrap();
    assert_eq!(server.command(&["GET", "k"]).await, Ok(text("v")));
    server.restart(Data::Lost).await.unwrap();
    assert_eq!(server.command(&["GET", "k"]).await, Ok(Value::Null));
    assert_ne!(server.pid(), pid);
    assert_eq!(server.address(), address);
}

#[tokio::test]
async fn a_killed_server_is_away_until_it_is_started_again() {
    if is_left_out() {
        return;
    }
    let server = RedisServer::start().await.unwrap();
    server.kill().unwrap();
    let failure = server.command(&["PING"]).await.unwrap_err().to_string();
    assert!(
        failure.contains("did not carry out \"PING\"") && failure.contains("Ready to accept"),
        "{failure}"
    );
    server.restart(Data::Kept).await.unwrap();
    assert_eq!(server.command(&["PING"]).await, Ok(text("PONG")));
}

#[tokio::test]
async fn a_stopped_server_answers_when_it_runs_on() {
    if is_left_out() {
        return;
    }
    let server = RedisServer::start().await.unwrap();
    server.stop().unwrap();
    let mut answer = std::pin::pin!(server.command(&["PING"]));
    let early = tokio::time::timeout(Duration::from_millis(200), &mut answer).await;
    assert!(early.is_err(), "a stopped server answered {early:?}");
    server.resume().unwrap();
    assert_eq!(answer.await, Ok(text("PONG")));
}
