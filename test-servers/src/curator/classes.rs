//! The Java program, compiled once for all tests that use it.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use tokio::sync::OnceCell;

use super::MISSING;
use crate::{During, Failure, Outcome};

const SOURCES: [(&str, &str); 1] = [("CuratorPeer.java", include_str!("CuratorPeer.java"))];

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

/// Returns the class path of the libraries.
pub(super) fn path() -> String {
    LIBRARIES.join(":")
}

/// The class files.
#[derive(Debug)]
pub(super) struct Classes(Vec<(String, Vec<u8>)>);

static COMPILED: OnceCell<Arc<Classes>> = OnceCell::const_new();

impl Classes {
    pub(super) async fn compiled() -> Outcome<Arc<Self>> {
        let compile = || async { tokio::task::spawn_blocking(compile).await?.map(Arc::new) };
        COMPILED.get_or_try_init(compile).await.map(Arc::clone)
    }

    pub(super) fn write_into(&self, folder: &Path) -> Outcome {
        for (name, bytes) in &self.0 {
            fs::write(folder.join(name), bytes).during(name)?;
        }
        Ok(())
    }
}

fn compile() -> Outcome<Classes> {
    if let Some(missing) = LIBRARIES.iter().find(|library| !Path::new(library).exists()) {
        return Err(Failure::new(format!("{missing} is missing. {MISSING}")));
    }
    let folder = tempfile::Builder::new().prefix("distlock-javac-").tempdir()?;
    let mut compiler = Command::new("javac");
    compiler.args(["-cp", &path(), "-encoding", "UTF-8", "-d"]).arg(folder.path());
    for (name, text) in SOURCES {
        let source = folder.path().join(name);
        fs::write(&source, text)?;
        compiler.arg(source);
    }
    let output = compiler.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::new(format!("there is no javac. {MISSING}")),
        _ => Failure::new(format!("javac: {error}")),
    })?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format!("javac ended with {}:\n{errors}", output.status)));
    }
    let mut classes = Vec::new();
    for entry in fs::read_dir(folder.path())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "class") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            classes.push((name, fs::read(path)?));
        }
    }
    Ok(Classes(classes))
}
