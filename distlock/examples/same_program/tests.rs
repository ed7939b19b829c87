//! The program runs on every backend.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

#[cfg(feature = "memory")]
#[tokio::test(flavor = "multi_thread")]
async fn counts_in_memory() {
    assert_eq!(count_at("memory:").await.unwrap(), TASKS * ROUNDS);
}

#[cfg(all(feature = "file", unix))]
#[tokio::test(flavor = "multi_thread")]
async fn counts_in_a_folder() {
    let folder = std::env::temp_dir().join(format!("distlock-same-program-{}", std::process::id()));
    let counted = count_at(&format!("file:{}", folder.display())).await.unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(counted, TASKS * ROUNDS);
}

#[cfg(all(feature = "redis", unix))]
#[tokio::test(flavor = "multi_thread")]
async fn counts_at_redis() {
    use test_servers::{RedisServer, left_out};
    if let Some(reason) = left_out("redis") {
        return eprintln!("redis: {reason}");
    }
    let server = RedisServer::start().await.unwrap();
    assert_eq!(count_at(&server.url()).await.unwrap(), TASKS * ROUNDS);
}

#[cfg(all(feature = "zookeeper", unix))]
#[tokio::test(flavor = "multi_thread")]
async fn counts_at_zookeeper() {
    use test_servers::{ZooKeeperServer, left_out};
    if let Some(reason) = left_out("zookeeper") {
        return eprintln!("zookeeper: {reason}");
    }
    let server = ZooKeeperServer::start().await.unwrap();
    assert_eq!(count_at(&server.url()).await.unwrap(), TASKS * ROUNDS);
}

#[cfg(all(feature = "mysql", unix))]
#[tokio::test(flavor = "multi_thread")]
async fn counts_at_mariadb_and_mysql() {
    use test_servers::{MySqlFlavour, MySqlServer, ServerOptions};
    for (flavour, scheme) in [(MySqlFlavour::MariaDb, "mariadb:"), (MySqlFlavour::MySql57, "mysql:")] {
        if let Some(reason) = flavour.left_out() {
            eprintln!("{flavour:?}: {reason}");
            continue;
        }
        let options = ServerOptions::new().flavour(flavour).database("locks");
        let options = options.user("app", "password", &["ALL ON locks.*"]);
        let server = MySqlServer::start_with(options).await.unwrap();
        let url = server.url().replace("mysql:", scheme);
        for tokens in ["uuid", "table"] {
            assert_eq!(count_at(&format!("{url}&fencing={tokens}")).await.unwrap(), TASKS * ROUNDS);
        }
    }
}

#[cfg(all(feature = "postgres", unix))]
#[tokio::test(flavor = "multi_thread")]
async fn counts_at_postgres() {
    use test_servers::{PostgresServer, ServerOptions};
    if let Some(reason) = test_servers::left_out("postgres") {
        return eprintln!("postgres: {reason}");
    }
    let options = ServerOptions::new().user("app", "password", &["CREATE ON SCHEMA public"]);
    let server = PostgresServer::start_with(options).await.unwrap();
    for tokens in ["clock", "sequence", "table"] {
        let url = format!("{}&fencing={tokens}", server.url());
        assert_eq!(count_at(&url).await.unwrap(), TASKS * ROUNDS);
    }
}
