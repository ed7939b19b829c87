//! A server that speaks as Azure Blob Storage does, for one test program.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folders::{kept, run};
use crate::server::{Kind, Place};
use crate::{During, Outcome, Server, ServerOptions, url};

/// The npm package.
const PACKAGE: &str = "azurite@3.37.0";

/// The account that it always has.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

const CONTAINER: &str = "container";

/// What an Azurite has of its own.
#[derive(Debug)]
pub struct Azurite {
    programs: PathBuf,
}

/// Azurite with one container. It writes its blobs to its folder from time to time, so that one that is killed has forgotten the last
/// ones.
pub type AzuriteServer = Server<Azurite>;

impl Kind for Azurite {
    const NAME: &str = "azurite";
    const MISSING: &str = "Azurite for tests comes from npm (the package azurite), and npm is missing or cannot reach its registry: \
                           install npm, or leave its tests out with DISTLOCK_SKIP=azurite";
    const DATA: &str = "blobs";

    fn find(_options: &mut ServerOptions) -> Outcome<Self> {
        Ok(Self { programs: kept(PACKAGE, install)? })
    }

    fn command(&self, place: &Place) -> Outcome<Command> {
        fs::create_dir_all(place.path(Self::DATA))?;
        let mut command = Command::new("node");
        command.arg(self.programs.join("node_modules/azurite/dist/src/blob/main.js"));
        command.args(["--silent", "--disableTelemetry", "--skipApiVersionCheck"]);
        command.args(["--blobHost", "127.0.0.1", "--blobPort", &place.port.to_string()]);
        command.args(["--location", &place.path(Self::DATA)]);
        Ok(command)
    }

    async fn prepare(server: &Server<Self>) -> Outcome {
        let mut command = Command::new("node");
        command.args(["-e", include_str!("container.js"), "--"]);
        run(command.args([&server.address().to_string(), ACCOUNT, KEY, CONTAINER]), Self::MISSING)
    }
}

impl AzuriteServer {
    /// Returns a URL for a client that reaches it at `address`, itself or through a proxy, with the locks below a prefix. Options
    /// can follow.
    pub fn url_at(address: SocketAddr, prefix: &str) -> String {
        format!("az://{}{CONTAINER}/{prefix}?endpoint=http://{address}/{ACCOUNT}", url::login(ACCOUNT, KEY))
    }
}

fn install(folder: &Path) -> Outcome {
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]).arg(folder).arg(PACKAGE);
    run(&mut npm, Azurite::MISSING).during(Azurite::MISSING)
}
