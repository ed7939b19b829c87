//! What the command does wherever a server keeps the locks. Each kind of server says here what is special about it, and has
//! tests of its own beside these.
// Each kind of server has its choice of the cases, and each can be left out.
#![cfg_attr(not(all(feature = "mysql", feature = "redis", feature = "zookeeper")), allow(dead_code))]

pub(crate) mod failures;
pub(crate) mod loss;
pub(crate) mod secrets;
pub(crate) mod sharing;

use std::time::Duration;

use conformance_tests::servers::TcpProxy;
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::Place;

/// A server of a test's own, which ends with the test.
pub(crate) trait Server {
    /// So long it keeps the locks of a silent client where a test waits for that: no longer than need be.
    const BRIEF: &'static str;
    /// What is said of a server that is not there.
    const AWAY: &'static str;
    /// What is said of a server that is there and says nothing.
    const SILENT: &'static str;
    /// How many loops count at once, and how often each.
    const LOOPS: [usize; 2];

    /// A place whose locks this server keeps; those of a client that is silent for that long are given to others.
    fn place(&self, silence: &str) -> Place;

    /// The same through a proxy.
    fn place_behind(&self, proxy: &TcpProxy, silence: &str) -> Place;

    /// A proxy in front of it.
    fn proxy(&self) -> TcpProxy;

    /// A place whose locks are other locks, whatever they are called.
    fn elsewhere(&self) -> Place;

    /// How much of that silence a hold relies on.
    fn lease_in(silence: Duration) -> Duration {
        silence
    }

    /// Falls silent for good.
    fn fall_silent(&self) {
        self.stop();
    }

    /// How people are told of a holder.
    fn people_read(&self, holder: Pid) -> String {
        format!("pid {holder} on ")
    }

    /// Makes sure that this is what the server tells of that holder.
    fn assert_is(&self, told: &Value, holder: Pid) {
        assert_eq!(told["pid"], holder.as_raw(), "{told}");
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(told["host"], host.trim(), "{told}");
    }

    /// Stops it as it stands: it answers nobody.
    fn stop(&self);

    /// Has it run on.
    fn resume(&self);

    /// Kills it.
    fn kill(&self);
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
