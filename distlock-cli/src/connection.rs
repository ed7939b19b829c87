//! The way to the lock: which backend, and how much time a holder of its locks needs to stop.

use std::env;
use std::ffi::OsString;
use std::time::Duration;

use distlock::{ClientBuilder, LockClient, LockError, LockUrl, Reach};
use tokio::time::timeout;

/// The variable that names the backend.
pub(crate) const URL_VARIABLE: &str = "DISTLOCK_URL";

const DEFAULT_URL: &str = "file:";
const LONGEST_DEFAULT_GRACE: Duration = Duration::from_secs(10);
/// The default grace is at most this part of the lease.
const PARTS_OF_LEASE: u32 = 3;

/// How long the command may take to leave in good order.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// The URL to use: an empty one is none.
fn url_or_default(url: Option<&str>) -> &str {
    url.filter(|url| !url.is_empty()).unwrap_or(DEFAULT_URL)
}

/// Connects, for someone who needs `abort_margin` to stop after a loss.
///
/// # Cancel safety
/// Dropping it ends the attempt to connect.
pub(crate) async fn open(url: Option<&str>, abort_margin: Duration) -> Result<LockClient, LockError> {
    distlock::connect_with(url_or_default(url), ClientBuilder::new().abort_margin(abort_margin)).await
}

/// Ends the client in good order, so that a server need not find out by itself that nobody is there any more.
///
/// What is not certain in time, it does find out: a place in a queue, a session and a lease go with the connection or
/// after their time. That is no reason for the command to fail.
pub(crate) async fn close(locks: &LockClient) {
    if locks.capabilities().reach == Reach::Network {
        let _ = locks.close(CLOSE_WITHIN).await;
    } else {
        // There is no session to end, only what was begun to finish.
        let _ = timeout(CLOSE_WITHIN, locks.idle()).await;
    }
}

/// How long a command has to end after a loss, when its user has not said so.
pub(crate) fn default_grace(url: Option<&str>) -> Result<Duration, LockError> {
    let lease = LockUrl::parse(url_or_default(url))?.options().take_duration("lease")?;
    Ok(lease.map_or(LONGEST_DEFAULT_GRACE, |lease| LONGEST_DEFAULT_GRACE.min(lease / PARTS_OF_LEASE)))
}

/// Whether the environment has a URL that the command must not get to see.
pub(crate) fn environment_has_secret() -> bool {
    env::var_os(URL_VARIABLE).is_some_and(|url| has_secret(&url))
}

fn has_secret(url: &OsString) -> bool {
    match url.to_str().map(LockUrl::parse) {
        Some(Ok(url)) => url.has_secret(),
        // What cannot be read could be anything.
        Some(Err(_)) | None => !url.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_is_at_most_a_third_of_the_lease() {
        for (url, seconds) in
            [(None, 10), (Some(""), 10), (Some("redis://a/?lease=60s"), 10), (Some("redis://a/?lease=6s"), 2)]
        {
            assert_eq!(default_grace(url).unwrap(), Duration::from_secs(seconds), "{url:?}");
        }
    }

    #[test]
    fn a_secret_is_anything_with_credentials_or_unreadable() {
        for (url, secret) in [
            ("file:/srv/locks", false),
            ("redis://cache/?lease=6s", false),
            ("", false),
            ("redis://user:word@cache/", true),
            ("redis://cache/?password=word", true),
            ("no scheme", true),
        ] {
            assert_eq!(has_secret(&url.into()), secret, "{url:?}");
        }
    }
}
