#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::{S3Faults, S3Server};

/// The status, and the tag if there is one.
async fn ask(server: &S3Server, request: &str) -> Option<(u16, Option<String>)> {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let tag = answer.lines().find_map(|line| line.strip_prefix("ETag: ")).map(str::to_owned);
    Some((status, tag))
}

async fn put(server: &S3Server, content: &str, condition: &str) -> Option<(u16, Option<String>)> {
    let length = content.len();
    let request =
        format!("PUT /bucket/a%252Fb HTTP/1.1\r\n{condition}\r\nContent-Length: {length}\r\n\r\n{content}");
    ask(server, &request).await
}

/// How many of so many writers of different contents on one condition are told that they have written.
async fn winners(server: &Arc<S3Server>, condition: &str, round: usize) -> usize {
    let mut writers = JoinSet::new();
    for number in 0..20 {
        let (server, condition) = (Arc::clone(server), condition.to_owned());
        writers.spawn(async move { put(&server, &format!("{round} {number}"), &condition).await.unwrap().0 });
    }
    writers.join_all().await.into_iter().filter(|status| *status == 200).count()
}

#[tokio::test]
async fn of_many_writers_on_one_condition_one_writes() {
    let server = Arc::new(S3Server::start().unwrap());
    assert_eq!(winners(&server, "If-None-Match: *", 0).await, 1);
    for round in 1..5 {
        let (_, tag) = ask(&server, "GET /bucket/a%252Fb HTTP/1.1\r\n\r\n").await.unwrap();
        assert_eq!(winners(&server, &format!("If-Match: {}", tag.unwrap()), round).await, 1);
    }
    assert_eq!(server.objects("a%2F").len(), 1);
    assert_eq!(server.counts(), (4, 100));
}

#[tokio::test]
async fn a_store_that_checks_and_writes_in_two_steps_has_several_winners() {
    let server = Arc::new(S3Server::start().unwrap());
    server.set_faults(S3Faults { apart: std::time::Duration::from_millis(500), ..S3Faults::default() });
    assert!(winners(&server, "If-None-Match: *", 0).await > 1);
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let server = S3Server::start().unwrap();
    assert_eq!(ask(&server, "GET /bucket/a HTTP/1.1\r\n\r\n").await, Some((404, None)));
    assert_eq!(ask(&server, "GET /other/a HTTP/1.1\r\n\r\n").await, Some((404, None)));
    assert_eq!(put(&server, "x", "If-Match: \"1\"").await, Some((404, None)));
}

#[tokio::test]
async fn a_write_may_be_carried_out_without_an_answer() {
    let server = S3Server::start().unwrap();
    server.set_faults(S3Faults { cut: 1000, ..S3Faults::default() });
    assert_eq!(put(&server, "x", "If-None-Match: *").await, None);
    assert_eq!(server.objects("").len(), 1);
}

#[tokio::test]
async fn a_write_may_be_carried_out_later() {
    let server = S3Server::start().unwrap();
    let late_by = std::time::Duration::from_millis(200);
    server.set_faults(S3Faults { late: 1000, late_by, ..S3Faults::default() });
    assert_eq!(put(&server, "x", "If-None-Match: *").await, None);
    while server.objects("").is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}
