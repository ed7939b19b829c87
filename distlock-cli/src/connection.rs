//! Finds the backend and connects to it, with enough time for a holder to stop after a loss.

use std::convert::Infallible;
use std::env;
use std::ffi::OsString;
use std::future::pending;
use std::time::Duration;

use distlock::capabilities::Reach;
use distlock::connection::{ConnectMode, EngineChoice, LockUrl};
use distlock::{ClientBuilder, LockClient, LockError};
use tokio::time::{sleep, timeout};

use crate::arguments::{Common, Supervision};
use crate::exit::{self, Ending, Failure};
use crate::report::Report;
use crate::signals::{FROM_OTHERS, Signals};
use crate::wait::{interrupted, patience};

/// The environment variable with the backend's URL.
pub(crate) const URL_VARIABLE: &str = "DISTLOCK_URL";

/// The environment variable that a command under a lock finds instead of a URL that was not passed on to it: the server, without
/// its credentials.
pub(crate) const WITHHELD_VARIABLE: &str = "DISTLOCK_WITHHELD";

const DEFAULT_URL: &str = "file:";
/// Thirty years, with which arithmetic on times does not overflow.
const LONGEST_GRACE: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
const LONGEST_DEFAULT_GRACE: Duration = Duration::from_secs(10);
/// The default grace is at most this part of the lease.
const PARTS_OF_LEASE: u32 = 3;

/// How long closing the client may take, and how long if the server has not answered before.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
const CLOSE_IN_VAIN_WITHIN: Duration = Duration::from_millis(500);

/// A wait that is shorter than this still allows this long for connecting.
const SHORTEST_CONNECT: Duration = Duration::from_secs(1);

/// The URL of the backend, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    url: String,
    source: Source,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Option,
    Variable,
    Default,
}

impl Address {
    /// The URL from the option, or else from the environment variable. An empty one counts as none. Without one it is refused
    /// where the locks of this machine would be the wrong ones.
    pub(crate) fn find(common: &Common) -> Result<Self, Failure> {
        let address = Self::choose(common.url.as_deref(), env::var_os(URL_VARIABLE))?;
        if address.source != Source::Default {
            return Ok(address);
        }
        match env::var_os(WITHHELD_VARIABLE) {
            Some(server) => Err(withheld(&server.to_string_lossy())),
            None if common.require_url => Err(no_url()),
            None => Ok(address),
        }
    }

    /// The URL without its credentials, for messages; `None` for the default.
    pub(crate) fn shown(&self) -> Option<String> {
        let is_given = self.source != Source::Default;
        is_given.then(|| {
            LockUrl::parse(&self.url).map_or_else(|_| "its server".to_owned(), |url| url.to_string())
        })
    }

    /// Whether a command under a lock finds the URL in its environment: there it is that of its own lock, and it may see it.
    pub(crate) fn is_passed_on(&self) -> bool {
        self.source == Source::Variable && !has_secret(&self.url)
    }

    fn choose(option: Option<&str>, variable: Option<OsString>) -> Result<Self, Failure> {
        let (url, source) = match (option, variable.map(OsString::into_string)) {
            (Some(url), _) => (url.to_owned(), Source::Option),
            (None, Some(Ok(url))) => (url, Source::Variable),
            (None, Some(Err(_))) => return Err(not_text()),
            (None, None) => (String::new(), Source::Default),
        };
        if url.is_empty() {
            return Ok(Self { url: DEFAULT_URL.to_owned(), source: Source::Default });
        }
        Ok(Self { url, source })
    }

    /// Connects for a holder that needs `abort_margin` to stop after a loss.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt to connect.
    pub(crate) async fn open(&self, abort_margin: Duration) -> Result<LockClient, Failure> {
        self.open_with(ClientBuilder::new().abort_margin(abort_margin)).await
    }

    /// Like [`Self::open`], for a caller that waits as long as `wait` for the server as well, if that is given.
    async fn open_within(
        &self,
        wait: Option<Duration>,
        abort_margin: Duration,
        report: &Report,
    ) -> Result<LockClient, Failure> {
        let builder = ClientBuilder::new().abort_margin(abort_margin);
        let builder = match wait {
            // Who does not want to wait may still say how long a server may take.
            Some(Duration::ZERO) if self.has_connect_timeout() => builder,
            Some(wait) => builder.connect_timeout(wait.max(SHORTEST_CONNECT)),
            None => builder,
        };
        tokio::select! {
            biased;
            opened = self.open_with(builder) => opened,
            never = tell_that_it_takes_long(report) => match never {},
        }
    }

    fn has_connect_timeout(&self) -> bool {
        LockUrl::parse(&self.url).is_ok_and(|url| url.options().take("connect_timeout").is_some())
    }

    /// Connects at once, whatever the URL says: that a server cannot be reached is no result of a wait for a lock.
    async fn open_with(&self, builder: ClientBuilder) -> Result<LockClient, Failure> {
        let builder = builder.connect_mode(ConnectMode::Eager).engine(self.engine());
        let connected = distlock::connect_with(&self.url, builder).await;
        connected.map_err(|error| self.failure(error))
    }

    /// Locks of this machine have no connection to keep up, so a thread for the client would only take time to start.
    fn engine(&self) -> EngineChoice {
        let is_local = |url: LockUrl| {
            let drivers = distlock::connection::drivers();
            let mut drivers = drivers.iter().filter(|driver| driver.schemes.contains(&url.scheme()));
            drivers.any(|driver| driver.reach != Reach::Network)
        };
        if LockUrl::parse(&self.url).is_ok_and(is_local) { EngineChoice::Caller } else { EngineChoice::Own }
    }

    /// Connects, does the work with the client, and closes it. A signal ends the attempt to connect. The caller waits as long as
    /// `wait`, if that is given, and needs `abort_margin` to stop after a loss.
    pub(crate) async fn work_with(
        &self,
        wait: Option<Duration>,
        abort_margin: Duration,
        report: &Report,
        work: impl AsyncFnOnce(&LockClient, &mut Signals) -> Result<Ending, Failure>,
    ) -> Result<Ending, Failure> {
        if let Some(server) = self.shown() {
            report.is_about(server);
        }
        let mut signals =
            Signals::listen(&FROM_OTHERS).map_err(|error| Failure::of_system("receive signals", error))?;
        let locks = tokio::select! {
            locks = self.open_within(wait, abort_margin, report) => locks?,
            signal = signals.next() => return Ok(interrupted(signal)),
        };
        let ending = work(&locks, &mut signals).await;
        let _ = signals.leaving(close_after(&locks, &ending)).await;
        ending
    }

    /// How long a command has to end after a loss.
    pub(crate) fn grace(&self, supervision: &Supervision) -> Result<Duration, Failure> {
        supervision.grace.map_or_else(|| self.default_grace(), |grace| Ok(grace.min(LONGEST_GRACE)))
    }

    /// The lease that the URL asks for, if its locks have one.
    pub(crate) fn lease(&self) -> Result<Option<Duration>, Failure> {
        distlock::connection::lease_of(&self.url).map_err(|error| self.failure(error))
    }

    fn default_grace(&self) -> Result<Duration, Failure> {
        Ok(self
            .lease()?
            .map_or(LONGEST_DEFAULT_GRACE, |lease| LONGEST_DEFAULT_GRACE.min(lease / PARTS_OF_LEASE)))
    }

    /// Adds the source of a wrong URL to the error.
    fn failure(&self, error: LockError) -> Failure {
        let mut failure = Failure::from(error);
        failure.message += match self.source {
            Source::Option => " (the URL is that of --url)",
            Source::Variable => " (the URL is that of the variable DISTLOCK_URL)",
            Source::Default => "",
        };
        failure
    }
}

async fn tell_that_it_takes_long(report: &Report) -> Infallible {
    if let Some((level, patience)) = patience(report) {
        sleep(patience).await;
        report.note(level, "no contact with the server yet; trying again");
    }
    pending().await
}

fn withheld(server: &str) -> Failure {
    Failure::new(
        exit::USAGE,
        format!(
            "this runs in a command under a lock at {server}, whose URL distlock did not pass on, and the locks of this machine would \
             be others (set {URL_VARIABLE} here, or use --url; --url file: for the locks of this machine)"
        ),
    )
}

fn no_url() -> Failure {
    Failure::new(exit::USAGE, format!("a URL is required here (set {URL_VARIABLE}, or use --url)"))
}

fn not_text() -> Failure {
    Failure::new(
        exit::USAGE,
        format!("the variable {URL_VARIABLE} cannot be read: it is not UTF-8 (set it again, or use --url)"),
    )
}

/// Closes the client, so that the server need not find out by itself that it is gone.
///
/// If that takes too long, the server does find out: a place in a queue, a session and a lease end with the connection or
/// expire. That is no reason for the command to fail.
pub(crate) async fn close(locks: &LockClient) {
    if locks.capabilities().reach == Reach::Network {
        let _ = locks.close(CLOSE_WITHIN).await;
    } else {
        // There is no session to end, only background work to finish.
        let _ = timeout(CLOSE_WITHIN, locks.idle()).await;
    }
}

/// Like [`close`], but faster if the server could not be reached according to `outcome`, because it will hardly answer now.
async fn close_after(locks: &LockClient, outcome: &Result<Ending, Failure>) {
    if outcome.as_ref().is_err_and(|failure| failure.code == exit::UNREACHABLE) {
        let _ = timeout(CLOSE_IN_VAIN_WITHIN, close(locks)).await;
    } else {
        close(locks).await;
    }
}

/// A URL that cannot be parsed may contain a secret.
fn has_secret(url: &str) -> bool {
    LockUrl::parse(url).map_or(true, |url| url.has_secret())
}

#[cfg(test)]
mod tests {
    use distlock::spi::{BackendOptions, Driver, UrlOptions};
    use distlock::{ErrorKind, Operation};

    use super::*;

    /// Options of a backend that no client reaches.
    #[derive(Clone, Default)]
    struct Leased {
        lease: Option<Duration>,
    }

    impl BackendOptions for Leased {
        fn of_url(_: &LockUrl) -> Result<Self, LockError> {
            Ok(Self::default())
        }

        fn visit(&mut self, options: &mut UrlOptions) -> Result<(), LockError> {
            self.lease = options.take_duration("lease")?;
            Ok(())
        }

        fn lease(&self) -> Option<Duration> {
            self.lease
        }

        async fn connect(self, _: ClientBuilder) -> Result<LockClient, LockError> {
            Err(LockError::new(ErrorKind::Unreachable, Operation::Connect))
        }
    }

    #[test]
    fn the_grace_is_at_most_a_third_of_the_lease() {
        let grace_of = |url| Address::choose(url, None).unwrap().default_grace();
        let seconds = Duration::from_secs;
        assert_eq!(grace_of(None).unwrap(), seconds(10));
        assert_eq!(grace_of(Some("")).unwrap(), seconds(10));
        let leased = Driver::of::<Leased>("leased", &["leased"]);
        distlock::register(leased.reach(Reach::Process)).unwrap();
        for (url, grace) in [
            ("leased:", seconds(10)),
            ("leased:?lease=60s", seconds(10)),
            ("leased:?lease=1h", seconds(10)),
            ("leased:?lease=9s", seconds(3)),
            ("leased:?lease=6s", seconds(2)),
        ] {
            assert_eq!(grace_of(Some(url)).unwrap(), grace, "{url}");
        }
        for url in distlock::connection::drivers().iter().flat_map(|driver| driver.examples) {
            let third = distlock::connection::lease_of(url).unwrap().map_or(Duration::MAX, |lease| lease / 3);
            assert_eq!(grace_of(Some(url)).unwrap(), third.min(seconds(10)), "{url}");
        }
        assert!(grace_of(Some("gopher:")).unwrap_err().message.contains("gopher"));
    }

    #[test]
    fn only_what_has_a_server_has_a_thread_of_its_own() {
        let engine_of = |url| Address::choose(Some(url), None).unwrap().engine();
        assert_eq!(engine_of(""), EngineChoice::Caller);
        for driver in distlock::connection::drivers() {
            let expected =
                if driver.reach == Reach::Network { EngineChoice::Own } else { EngineChoice::Caller };
            assert!(driver.examples.iter().all(|url| engine_of(url) == expected), "{driver:?}");
        }
        assert_eq!(engine_of("gopher:"), EngineChoice::Own);
    }

    #[test]
    fn the_option_comes_before_the_variable_and_an_empty_one_is_none() {
        let of = |option, variable: Option<&str>| {
            let address = Address::choose(option, variable.map(OsString::from)).unwrap();
            (address.url, address.source)
        };
        assert_eq!(of(Some("file:/a"), Some("file:/b")), ("file:/a".to_owned(), Source::Option));
        assert_eq!(of(None, Some("file:/b")), ("file:/b".to_owned(), Source::Variable));
        for (option, variable) in [(None, None), (None, Some("")), (Some(""), Some("file:/b"))] {
            assert_eq!(of(option, variable), ("file:".to_owned(), Source::Default));
        }
    }

    #[test]
    fn a_secret_is_anything_with_credentials_or_unreadable() {
        for (url, secret) in [
            ("file:/srv/locks", false),
            ("server://db/locks?lease=6s", false),
            ("server://user:word@db/", true),
            ("server://db/?password=word", true),
            ("server://db/locks?fencing=table", false),
            ("server://app:word@db/locks", true),
            ("no scheme", true),
        ] {
            assert_eq!(has_secret(url), secret, "{url:?}");
        }
    }
}
