//! What the facade knows about this backend.

use lock_kit::{Driver, UrlOption};

/// The backend's driver: its schemes, its options, and how to connect.
pub static DRIVER: Driver = Driver::new(
    "zookeeper",
    &["zookeeper"],
    |url, builder| Box::pin(async move { crate::connect(&url, builder).await }),
    crate::lease_of,
)
.summary("locks across machines, kept by a ZooKeeper ensemble")
.examples(&["zookeeper://zoo1,zoo2,zoo3/locks", "zookeeper://zoo1,zoo2,zoo3/locks?session_timeout=30s"])
.options(&[
    UrlOption::duration(
        "session_timeout",
        "how long the servers keep a silent client's locks; two thirds are the lease",
    )
    .default_value("10 s"),
    UrlOption::choice("acl", &["open", "creator"], "who may use the nodes that this client creates")
        .default_value("open"),
    UrlOption::choice("auth", &["digest", "sasl"], "how user and password are used").default_value("digest"),
    UrlOption::file("password_file", "a file that contains the password of the user in the URL"),
    UrlOption::choice("fencing", &["czxid", "none"], "where tokens come from").default_value("czxid"),
    UrlOption::choice("accept", &["curator", "kazoo"], "the programs whose nodes count as contenders")
        .default_value("curator"),
    UrlOption::choice("tls", &["on", "off"], "whether connections are encrypted").default_value("off"),
    UrlOption::file("ca", "the authority that the servers' certificates must come from"),
    UrlOption::file("cert", "the client's certificate"),
    UrlOption::file("key", "the key of the client's certificate"),
]);

#[cfg(test)]
mod tests {
    use lock_kit::LockUrl;

    use super::*;

    #[test]
    fn the_lease_is_what_the_url_asks_for() {
        for (url, seconds) in [
            ("zookeeper://h1,h2", 20.0 / 3.0),
            ("zookeeper://h1?session_timeout=30s", 20.0),
            ("zookeeper://a/locks?session_timeout=9s", 6.0),
            ("zookeeper://a/locks?session_timeout=1m", 40.0),
        ] {
            let lease = (DRIVER.lease_of)(&LockUrl::parse(url).unwrap()).unwrap().unwrap();
            assert!((lease.as_secs_f64() - seconds).abs() < 1e-6, "{url}: {lease:?}");
        }
    }
}
