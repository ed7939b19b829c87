//! Runs ZooKeeper with plain `java` and the jars of Debian's packages, not as a service.

use std::path::Path;
use std::process::Command;

use crate::{Failure, Outcome};

const FOLDER: &str = "/usr/share/java";
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// The manifest of the first jar names most of the others, but not the parts of Netty, and no logger.
const JARS: [&str; 7] = [
    "zookeeper.jar",
    "slf4j-simple.jar",
    "netty-codec.jar",
    "netty-resolver.jar",
    "netty-transport-native-unix-common.jar",
    "netty-transport-native-epoll.jar",
    "netty-handler.jar",
];

/// Small, quick to start, and limited to one processor: a server of a test does little, and there may be many. The log has the time
/// of each event, on one line each.
const OPTIONS: [&str; 9] = [
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.showShortLogName=true",
];

pub(super) const MISSING: &str = "ZooKeeper is not installed: install ZooKeeper 3.6 or newer, with Java (on Debian and Ubuntu: apt-get install \
     zookeeper), or leave its tests out with DISTLOCK_SKIP=zookeeper";

/// Returns the command that runs a server with its configuration in `file`.
pub(super) fn server(file: &str, properties: &[String]) -> Outcome<Command> {
    if !Path::new(FOLDER).join(JARS[0]).exists() {
        return Err(Failure::new(MISSING));
    }
    let jars: Vec<_> = JARS.iter().map(|jar| format!("{FOLDER}/{jar}")).collect();
    let mut command = Command::new("java");
    command.args(OPTIONS).args(properties).arg("-cp").arg(jars.join(":")).arg(MAIN).arg(file);
    Ok(command)
}
