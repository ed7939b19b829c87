//! What only this backend has: its options, its errors, what it costs.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ClientBuilder, Clock, ErrorKind, LockClient, LockError};
use lock_kit::LockUrl;
use lock_object_store::DRIVER;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions, RetryConfig,
    UpdateVersion,
};
use test_servers::{AzuriteServer, S3Faults, S3Server, left_out};
use tokio::task::JoinSet;

async fn connect(url: &str) -> Result<LockClient, LockError> {
    (DRIVER.connect)(LockUrl::parse(url)?, ClientBuilder::new().connect_timeout(Duration::ZERO)).await
}

async fn client(server: &S3Server) -> LockClient {
    connect(&S3Server::url_at(server.address(), "locks")).await.unwrap()
}

#[tokio::test]
async fn a_cycle_costs_one_read_and_two_writes() {
    let server = S3Server::start().unwrap();
    let lock = client(&server).await.mutex("room").unwrap();
    for _ in 0..20 {
        let before = server.counts();
        lock.acquire().await.unwrap().release().await.unwrap();
        let after = server.counts();
        assert_eq!((after.0 - before.0, after.1 - before.1), (1, 2));
    }
    assert_eq!(server.objects("").into_keys().collect::<Vec<_>>(), ["locks/room.lock"]);
}

/// That is 480 writes in an hour. After each step a ping, which is a read, shows that nothing else was sent before it.
#[tokio::test]
async fn a_hold_costs_a_write_in_a_quarter_of_its_lease_and_nothing_in_between() {
    // A renewal that is due within a sixteenth of its interval may be sent at once.
    const ALMOST_AN_INTERVAL: Duration = Duration::from_secs(7);
    const STEP: Duration = Duration::from_millis(500);
    let server = S3Server::start().unwrap();
    let (clock, time) = Clock::manual();
    let url = LockUrl::parse(&S3Server::url_at(server.address(), "locks")).unwrap();
    let locks = (DRIVER.connect)(url, ClientBuilder::new().clock(clock)).await.unwrap();
    let guard = locks.mutex("room").unwrap().acquire().await.unwrap();
    for _ in 0..20 {
        let (reads, writes) = server.counts();
        time.advance(ALMOST_AN_INTERVAL);
        locks.ping().await.unwrap();
        assert_eq!(server.counts(), (reads + 1, writes));
        let left = guard.hold().remaining();
        time.advance(STEP);
        // Until the client has the answer: the next interval begins with that.
        while guard.hold().remaining() <= left {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        locks.ping().await.unwrap();
        assert_eq!(server.counts(), (reads + 2, writes + 1));
    }
    guard.release().await.unwrap();
}

/// The same request again would be refused, as if another client had been faster; and a late first one could come after that.
#[tokio::test]
async fn a_write_that_is_answered_500_is_sent_once() {
    let server = S3Server::start().unwrap();
    let lock = client(&server).await.mutex("room").unwrap();
    server.set_faults(S3Faults { failed: 1, ..S3Faults::default() });
    let error = lock.try_acquire().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(!server.objects("").is_empty(), "it was carried out");
    // The attempt is undone.
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_conflict_is_read_again() {
    let server = S3Server::start().unwrap();
    let lock = client(&server).await.mutex("room").unwrap();
    // With an object and without one.
    for _ in 0..2 {
        server.set_faults(S3Faults { conflicts: 1, ..S3Faults::default() });
        let before = server.counts();
        // A try is not made again by the core.
        let guard = lock.try_acquire().await.unwrap().unwrap();
        let after = server.counts();
        assert_eq!((after.0 - before.0, after.1 - before.1), (2, 2));
        guard.release().await.unwrap();
    }
}

/// The page's prices, per million, by its numbers of requests. Other tests count those.
#[test]
fn the_page_says_what_its_requests_cost() {
    let page = include_str!("../../docs/backends/object-store.md");
    let number = |text: &str| text.trim().replace(',', "").parse::<f64>().unwrap_or(0.0);
    let all = |cell: &str| cell.split('+').map(number).sum::<f64>();
    let mut rows = 0;
    for row in page.lines().filter(|line| line.starts_with("| ") && line.contains('$')) {
        let [_, what, reads, writes, price, _] = row.split('|').collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let each = all(reads) * 0.4e-6 + all(writes) * 5e-6;
        for part in price.split(',') {
            let (dollars, unit) = part.trim().trim_start_matches("or ").split_once(' ').unwrap_or((part, ""));
            let dollars = dollars.trim().trim_start_matches('$');
            let decimals = dollars.split_once('.').map_or(0, |(_, digits)| digits.len());
            let hours_or_more = match unit.trim() {
                "for a million" => 1e6,
                "a month" => 730.0,
                _ => 1.0,
            };
            assert_eq!(format!("{:.decimals$}", each * hours_or_more), dollars, "{what}");
        }
        rows += 1;
    }
    assert_eq!(rows, 5);
}

/// What the locks rely on, at a server of Azure's protocol: of several writes on one version one is carried out. In the tier of all.
#[tokio::test]
async fn of_twenty_writes_on_one_version_azurite_carries_out_one() {
    if std::env::var("DISTLOCK_TESTS").as_deref() != Ok("all") || left_out("azurite").is_some() {
        return;
    }
    let server = AzuriteServer::start().await.unwrap();
    let url = LockUrl::parse(&AzuriteServer::url_at(server.address(), "locks")).unwrap();
    let account = url.user().unwrap().unwrap();
    // Each request is a process's work in JavaScript: a busy machine takes long.
    let patient = ClientOptions::new().with_allow_http(true).with_timeout(Duration::from_secs(120));
    // It closes connections that nothing uses, and may do that when the next round begins.
    let patient = patient.with_pool_max_idle_per_host(0);
    let store = MicrosoftAzureBuilder::new()
        .with_container_name(url.hosts())
        .with_endpoint(format!("http://{}/{account}", server.address()))
        .with_account(account)
        .with_access_key(url.password().unwrap().unwrap().reveal())
        .with_client_options(patient)
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() });
    let (store, path) = (Arc::new(store.build().unwrap()), Path::from("contested"));
    let mut version = UpdateVersion::from(store.put(&path, "0".into()).await.unwrap());
    for round in 1..=20 {
        let mut writes = JoinSet::new();
        for writer in 0..20 {
            let (store, path) = (Arc::clone(&store), path.clone());
            let options = PutOptions { mode: PutMode::Update(version.clone()), ..PutOptions::default() };
            let content = format!("{round} {writer}");
            writes.spawn(async move {
                store.put_opts(&path, content.clone().into(), options).await.map(|done| (content, done))
            });
        }
        let mut done = Vec::new();
        for written in writes.join_all().await {
            match written {
                Ok(written) => done.push(written),
                Err(error) => assert!(matches!(error, Error::Precondition { .. }), "{error}"),
            }
        }
        let [(content, written)] = <[_; 1]>::try_from(done).unwrap();
        let found = store.get(&path).await.unwrap().bytes().await.unwrap();
        assert_eq!(found, content.as_bytes());
        version = written.into();
    }
}

#[tokio::test]
async fn a_bucket_that_does_not_exist_is_named_by_the_first_acquisition() {
    let server = S3Server::start().unwrap();
    let url = S3Server::url_at(server.address(), "locks").replace(S3Server::BUCKET, "other");
    let locks = connect(&url).await.unwrap();
    let error = locks.mutex("room").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    assert!(error.to_string().contains("the name of the bucket"), "{error}");
}

#[tokio::test]
async fn an_object_of_another_program_is_left_alone() {
    let server = S3Server::start().unwrap();
    let locks = client(&server).await;
    locks.mutex("room").unwrap().acquire().await.unwrap().release().await.unwrap();
    server.change("locks/room.lock", |content| *content = b"hello".to_vec());
    let error = locks.mutex("room").unwrap().try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Server, false));
    assert_eq!(server.objects("")["locks/room.lock"], b"hello");
}

#[tokio::test]
async fn a_key_that_is_no_path_hides_no_lock_in_a_list() {
    let server = S3Server::start().unwrap();
    let locks = client(&server).await;
    let names = [".a", "a", "b", "c", "m", "n", "x", "y"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(locks.mutex(name).unwrap().acquire().await.unwrap());
    }
    for stray in
        ["", ".", "..", "/x", "b\u{7f}", "b\u{7f}c", "m//n", "readme", "sub/x.lock", "z/./x", "~\u{7f}"]
    {
        server.create(&format!("locks/{stray}"));
    }
    let found = locks.list().await.unwrap();
    assert!(found.failures.is_empty(), "{:?}", found.failures);
    assert_eq!(found.locks.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), names);
}

#[tokio::test]
async fn a_store_that_is_away_is_an_error_that_says_why() {
    let address = S3Server::start().unwrap().address();
    let error = connect(&S3Server::url_at(address, "locks")).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("refused"), "{error}");
    assert!(!format!("{error:?}").contains("secret"));
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_what_to_do() {
    for (url, part) in [
        ("s3:", "s3://my-bucket/locks"),
        ("s3://bucket?lease=1s", "at least 5s"),
        ("s3://bucket?poll=1ms", "at least 10ms"),
        ("s3://key@bucket", "s3://KEY:SECRET@bucket"),
        ("gs://user:hunter2@bucket", "GOOGLE_SERVICE_ACCOUNT"),
        ("gs://bucket?endpoint=http://127.0.0.1:1", "GOOGLE_SERVICE_ACCOUNT"),
        ("az://container", "complete the URL, or the variables"),
        ("s3://bucket?port=1", "there is no option \"port\""),
    ] {
        let error = connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{url}");
        let text = error.to_string();
        assert!(text.contains(part) && !text.contains("hunter2"), "{url}: {text}");
    }
}

#[test]
fn the_lease_is_read_without_connecting() {
    let of = |url: &str| (DRIVER.lease_of)(&LockUrl::parse(url).unwrap()).unwrap();
    assert_eq!(of("az://container"), Some(Duration::from_secs(30)));
    assert_eq!(of("gs://bucket?lease=1m"), Some(Duration::from_secs(60)));
}
