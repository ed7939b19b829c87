//! The Java program, compiled once.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;

use super::Curator;
use crate::folders::{kept, run};
use crate::server::Kind as _;
use crate::{Failure, Outcome};

const SOURCE: &str = include_str!("CuratorPeer.java");

/// The libraries of Debian's packages.
const LIBRARIES: [&str; 8] = [
    "/usr/share/java/curator-recipes.jar",
    "/usr/share/java/curator-framework.jar",
    "/usr/share/java/curator-client.jar",
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/zookeeper-jute.jar",
    "/usr/share/java/slf4j-api.jar",
    "/usr/share/java/slf4j-simple.jar",
    "/usr/share/java/guava.jar",
];

/// Returns the class path of the program.
pub(super) fn compiled() -> Outcome<String> {
    if let Some(missing) = LIBRARIES.iter().find(|library| !Path::new(library).exists()) {
        return Err(Failure::new(format!("{missing} is missing. {}", Curator::MISSING)));
    }
    let libraries = LIBRARIES.join(":");
    let mut hasher = DefaultHasher::new();
    SOURCE.hash(&mut hasher);
    let classes = kept(&format!("curator-{:016x}", hasher.finish()), |made| {
        fs::create_dir(made)?;
        let source = made.join("CuratorPeer.java");
        fs::write(&source, SOURCE)?;
        let mut compiler = Command::new("javac");
        // For the oldest Java that the source is for, whichever compiles it.
        compiler.args(["--release", "11", "-cp", &libraries, "-encoding", "UTF-8"]);
        run(compiler.arg(source), Curator::MISSING)
    })?;
    Ok(format!("{libraries}:{}", classes.display()))
}
