//! The command with every kind of server. Each kind implements the trait below and has tests of its own besides these.
// Each kind of server uses some of the cases, and each kind can be left out.
#![cfg_attr(
    not(all(feature = "mysql", feature = "postgres", feature = "redis", feature = "zookeeper")),
    allow(dead_code)
)]

pub(crate) mod election;
pub(crate) mod failures;
pub(crate) mod loss;
pub(crate) mod once;
pub(crate) mod secrets;
pub(crate) mod sharing;

use std::time::Duration;

use nix::unistd::Pid;
use serde_json::Value;
use test_servers::TcpProxy;

use crate::support::Sandbox;
use crate::together::Places;

/// A server of one test, which ends with the test.
pub(crate) trait Server {
    /// The scheme of its URLs.
    const NAME: &'static str;
    /// How long it keeps the locks of a silent client if a test waits for that: no longer than necessary.
    const BRIEF: &'static str;
    /// The message about a server that does not exist.
    const AWAY: &'static str;
    /// The message about a server that exists and is silent.
    const SILENT: &'static str;
    /// How many loops count at the same time, and how often each.
    const LOOPS: [usize; 2];

    /// A sandbox whose locks this server keeps; it gives those of a client that is silent for `silence` to other clients.
    fn sandbox(&self, silence: &str) -> Sandbox;

    /// The same, through a proxy.
    fn place_behind(&self, proxy: &TcpProxy, silence: &str) -> Sandbox;

    /// A proxy in front of the server.
    fn proxy(&self) -> TcpProxy;

    /// A sandbox whose locks are other locks, even with the same names.
    fn elsewhere(&self) -> Sandbox;

    /// How much of that silence a hold relies on.
    fn lease_in(silence: Duration) -> Duration {
        silence
    }

    /// Makes the server silent for good.
    fn fall_silent(&self) {
        self.stop();
    }

    /// How messages name a holder.
    fn people_read(&self, holder: Pid) -> String {
        format!("pid {holder} on ")
    }

    /// Asserts that `told` is what the server reports of that holder.
    fn assert_is(&self, told: &Value, holder: Pid) {
        assert_eq!(told["pid"], holder.as_raw(), "{told}");
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(told["host"], host.trim(), "{told}");
    }

    /// Suspends the server: it answers no client.
    fn stop(&self);

    /// Lets the server continue.
    fn resume(&self);

    /// Kills the server.
    fn kill(&self);

    /// Starts the server again after it was killed, on the same port. It may serve clients only later.
    fn restart(&self);
}

/// The locks of a server, for the cases of readers and permits.
pub(crate) fn places<S: Server>(server: Option<S>) -> Option<(S, Places)> {
    let server = server?;
    let places = Places { backend: S::NAME, calm: server.sandbox("60s"), brief: server.sandbox(S::BRIEF) };
    Some((server, places))
}

/// The URL with one more option.
pub(crate) fn with_option(url: &str, option: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}{option}")
}

/// A test for each of the cases, with a server of its own: `cases!(Server::start(), loss: [this, that])`.
macro_rules! cases {
    ($start:expr, $kind:ident: [$($case:ident),+ $(,)?]) => {
        $(
            #[test]
            fn $case() {
                if let Some(server) = $start {
                    crate::at_a_server::$kind::$case(&server);
                }
            }
        )+
    };
}
pub(crate) use cases;
