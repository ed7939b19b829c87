//! What the facade knows about this backend.

use lock_kit::{Driver, UrlOption};

/// The backend's driver: its schemes, its options, and how to connect.
pub static DRIVER: Driver = Driver::new(
    "postgres",
    &["postgres", "postgresql"],
    |url, builder| Box::pin(async move { crate::connect(&url, builder).await }),
    crate::lease_of,
)
.summary("locks across machines, kept by a PostgreSQL server")
.examples(&["postgres://app@db/app", "postgres://app:password@db/app?fencing=sequence"])
.options(&[
    UrlOption::duration("lease", "how long the server keeps a silent connection").default_value("30 s"),
    UrlOption::duration("validation_interval", "how often holds are checked")
        .default_value("a quarter of the lease, about"),
    UrlOption::choice("fencing", &["clock", "sequence", "table", "none"], "where tokens come from")
        .default_value("clock"),
    UrlOption::choice("keys", &["hashed", "raw"], "what the server gets of names").default_value("hashed"),
    UrlOption::choice("pooler", &["none", "session"], "whether a pooler in session mode is in between")
        .default_value("none"),
    UrlOption::text("schema", "the schema of the client's tables").default_value("public"),
    UrlOption::text("prefix", "the beginning of the locks' names"),
    UrlOption::duration("timeout", "how long the server may take for a statement that does not wait")
        .default_value("3 s, and never more than three quarters of the time between two checks"),
    UrlOption::number("locks_per_connection", "how many held locks share a connection").default_value("320"),
    UrlOption::number("max_waiting", "the limit of waits at the server").default_value("16"),
    UrlOption::number("max_connections", "the limit of connections").default_value("50"),
    UrlOption::file("socket", "a Unix socket instead of TCP"),
    UrlOption::choice("tls", &["on", "off"], "whether connections are encrypted").default_value("off"),
    UrlOption::file("extra_ca", "an authority that is trusted besides the system's"),
    UrlOption::file("cert", "the client's certificate"),
    UrlOption::file("key", "the key of the client's certificate"),
    UrlOption::file("password_file", "a file that contains the password"),
]);

#[cfg(test)]
mod tests {
    use lock_kit::LockUrl;

    use super::*;

    #[test]
    fn the_lease_is_what_the_url_asks_for() {
        for (url, seconds) in [
            ("postgres://db", 30.0),
            ("postgresql://db?lease=6s", 6.0),
            ("postgres://a/locks?fencing=table&lease=1h", 3600.0),
        ] {
            let lease = (DRIVER.lease_of)(&LockUrl::parse(url).unwrap()).unwrap().unwrap();
            assert!((lease.as_secs_f64() - seconds).abs() < 1e-6, "{url}: {lease:?}");
        }
    }
}
