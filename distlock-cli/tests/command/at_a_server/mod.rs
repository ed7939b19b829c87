//! The command with every kind of server. Each kind implements the trait below and has tests of its own besides these.
// Each kind of server uses some of the cases, and each kind can be left out.
#![cfg_attr(
    not(all(
        feature = "etcd",
        feature = "mysql",
        feature = "object-store",
        feature = "postgres",
        feature = "redis",
        feature = "zookeeper"
    )),
    allow(dead_code, reason = "some are for one backend alone")
)]

pub(crate) mod election;
pub(crate) mod failures;
pub(crate) mod loss;
pub(crate) mod once;
pub(crate) mod secrets;
pub(crate) mod sharing;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use nix::unistd::Pid;
use serde_json::Value;
use test_servers::{Direction, TcpProxy};

use crate::support::{Sandbox, is_all};
use crate::together::Places;

/// The locks of one test at a server, which other tests may use as well. The test reaches it through a proxy of its own,
/// and that is what it stops and kills.
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

    /// The address of the server itself.
    fn address(&self) -> SocketAddr;

    /// The proxy of this test.
    fn way(&self) -> &TcpProxy;

    /// A sandbox whose locks the server at this address keeps; it gives those of a client that is silent for `silence` to
    /// other clients.
    fn place_at(&self, address: SocketAddr, silence: &str) -> Sandbox;

    /// A sandbox whose locks are other locks, even with the same names.
    fn elsewhere(&self) -> Sandbox;

    /// A sandbox that the test's proxy leads to. A busy machine may take long to connect.
    fn sandbox(&self, silence: &str) -> Sandbox {
        let sandbox = self.place_at(self.way().address(), silence);
        Sandbox::at(with_option(&sandbox.url(), "connect_timeout=60s"))
    }

    /// The same, through another proxy.
    fn place_behind(&self, proxy: &TcpProxy, silence: &str) -> Sandbox {
        self.place_at(proxy.address(), silence)
    }

    /// Another proxy in front of the server.
    fn proxy(&self) -> TcpProxy {
        TcpProxy::start(self.address()).unwrap()
    }

    /// How much of that silence a hold relies on.
    fn lease_in(silence: Duration) -> Duration {
        silence
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

    /// Makes the server silent: it answers no client of this test.
    fn stop(&self) {
        self.way().blackhole(Direction::ToServer);
        self.way().blackhole(Direction::ToClient);
    }

    /// Lets the server continue.
    fn resume(&self) {
        self.way().heal();
    }

    /// Makes the server disappear: connections end, and new ones are refused.
    fn kill(&self) {
        self.way().sever();
    }

    /// Lets the server appear again.
    fn restart(&self) {
        self.way().heal();
    }
}

/// Starts a server for all tests that do not change it; it ends with the last of those that run at the same time.
pub(crate) fn shared<T>(running: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Arc<T> {
    let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
    running.upgrade().unwrap_or_else(|| {
        let server = Arc::new(start());
        *running = Arc::downgrade(&server);
        server
    })
}

/// A name that no other test of this program gives to a part of a server.
pub(crate) fn place() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("test{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A server for cases that run at few by default, because servers make little difference to them: at all in the tier of all.
pub(crate) fn in_all<S>(start: impl FnOnce() -> Option<S>) -> Option<S> {
    is_all().then(start).flatten()
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

/// A test for each of the cases: `cases!(Server::start(), loss: [this, that])`.
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
