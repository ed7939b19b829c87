//! A network of this program's own, in which servers can be separated from each other while each client reaches all of them.
//!
//! Servers connect to each other from addresses of their own, and clients from the loopback address. So the rules of the system's
//! routes tell them apart: what an isolated server and others send to each other goes to a device behind which there is nothing. As
//! with a cable that is pulled out, no connection ends, and none is refused.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use conformance_tests::{During, Failure, Outcome, ensure};
use test_servers::{RedisServer, ServerOptions, left_out};

/// The variable with the id of the process that is in such a network; of another, it says nothing.
const IN_NETWORK: &str = "DISTLOCK_TEST_IN_NETWORK_OF_ITS_OWN";

/// The name in `DISTLOCK_SKIP`.
pub(super) const NAMESPACES: &str = "namespaces";

/// Rules for isolated servers come before that for what is on this machine, which the system puts first.
const NETWORK: &str = r"
ip link set lo up
ip addr add 10.66.0.1/16 dev lo
ip link add sink type bridge
ip link set sink arp off up
ip route add default dev sink table 66
ip rule add pref 1000 lookup local
ip rule del pref 0
ip rule add pref 10 from 10.66.0.0/16 ipproto tcp dport 1 lookup 66
ip rule del pref 10 from 10.66.0.0/16 ipproto tcp dport 1 lookup 66
";

/// The order of the rules for isolated servers.
const PREFERENCE: u16 = 10;

pub(super) fn is_in_it() -> bool {
    std::env::var(IN_NETWORK).is_ok_and(|id| id == std::process::id().to_string())
}

/// Starts this program again, as the same process, in a network of its own; goes on here if that is not possible. Call it before
/// there is another thread.
pub(super) fn enter() -> Outcome {
    if is_in_it() || left_out(NAMESPACES).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe()?;
    let within = |last: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net", "sh", "-ec"]).arg(format!("{NETWORK}{last}"));
        command.arg("sh").arg(&program);
        command
    };
    // There, files of other users are out of reach.
    if !within(r#"test -x "$1""#).status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    let mut again = within(r#"exec "$@""#);
    again.args(std::env::args_os().skip(1)).env(IN_NETWORK, std::process::id().to_string());
    Err(again.exec().into())
}

/// The options of servers that can be isolated.
pub(super) fn options() -> ServerOptions {
    let options = ServerOptions::new().setting("bind-source-addr", "127.0.0.1");
    // They take each other for strangers.
    options.setting("protected-mode", "no").setting("replica-announce-ip", "127.0.0.1")
}

/// Separates these servers from all other ones, and from each other.
pub(super) fn isolate(servers: &[&RedisServer]) -> Outcome {
    servers.iter().try_for_each(|server| change("add", server))
}

/// Ends that.
pub(super) fn rejoin(servers: &[&RedisServer]) -> Outcome {
    servers.iter().try_for_each(|server| change("del", server))
}

fn change(verb: &str, server: &RedisServer) -> Outcome {
    let source = server.source();
    let mut selectors = vec![format!("from {source}"), format!("to {source}")];
    for port in [Some(server.address().port().to_string().as_str()), server.bus()].into_iter().flatten() {
        selectors.push(format!("from 10.66.0.0/16 ipproto tcp dport {port}"));
        selectors.push(format!("to 10.66.0.0/16 ipproto tcp sport {port}"));
    }
    let rule = |selector| format!("rule {verb} pref {PREFERENCE} {selector} lookup 66\n");
    let rules: Vec<_> = selectors.into_iter().map(rule).collect();
    let mut ip = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().during("run ip")?;
    ip.stdin.take().ok_or_else(|| Failure::new("ip has no input"))?.write_all(rules.concat().as_bytes())?;
    ensure!(ip.wait()?.success(), "ip did not {verb} the rules of {}", server.address());
    Ok(())
}
