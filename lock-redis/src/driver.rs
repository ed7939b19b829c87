//! What the facade knows about this backend.

use lock_kit::{Driver, UrlOption};

/// The backend's driver: its schemes, its options, and how to connect.
pub static DRIVER: Driver = Driver::new(
    "redis",
    &["redis", "rediss", "unix"],
    |url, builder| Box::pin(async move { crate::connect(&url, builder).await }),
    crate::lease_of,
)
.summary("locks across machines, kept by a Redis server")
.examples(&[
    "redis://cache:6379",
    "redis://cache:6379?lease=60s",
    "rediss://app@cache?password_file=/etc/app/pw",
    "unix:///run/redis.sock",
])
.options(&[
    UrlOption::duration("lease", "how long the server keeps a lock without a renewal from its holder")
        .default_value("30 s"),
    UrlOption::text("prefix", "the beginning of all keys and channels").default_value("distlock"),
    UrlOption::duration("timeout", "how long the server may be silent while a reply is due")
        .default_value("3 s, and never more than three quarters of the renewal interval"),
    UrlOption::duration("restart_delay", "take no lock on a server that started more recently than that")
        .default_value("0"),
    UrlOption::number("db", "the database, if the URL's path does not name it").default_value("0"),
    UrlOption::file("password_file", "a file that contains the password"),
    UrlOption::file("ca", "the authority that the server's certificate must come from")
        .default_value("the system's"),
    UrlOption::file("cert", "the client's certificate"),
    UrlOption::file("key", "the key of the client's certificate"),
]);

#[cfg(test)]
mod tests {
    use lock_kit::LockUrl;

    use super::*;

    #[test]
    fn the_lease_is_what_the_url_asks_for() {
        for (url, seconds) in
            [("redis://cache", 30.0), ("redis://cache?lease=6s", 6.0), ("redis://a/?lease=60s", 60.0)]
        {
            let lease = (DRIVER.lease_of)(&LockUrl::parse(url).unwrap()).unwrap().unwrap();
            assert!((lease.as_secs_f64() - seconds).abs() < 1e-6, "{url}: {lease:?}");
        }
    }
}
