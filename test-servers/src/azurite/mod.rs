//! A server that speaks as Azure Blob Storage does, for one test program.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::folders::{kept, run};
use crate::ports::on_free_ports;
use crate::process::process_methods;
use crate::{During, Failure, Outcome, ServerProcess, free_port, url};

/// The npm package.
const PACKAGE: &str = "azurite@3.37.0";

const MISSING: &str = "Azurite for tests comes from npm (the package azurite), and npm is missing or cannot reach its registry: \
                       install npm, or leave its tests out with DISTLOCK_SKIP=azurite";

/// The account that it always has.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

const CONTAINER: &str = "container";

/// Azurite on a port of its own, with one container, whose blobs are in a temporary folder. It writes them there from time to time, so
/// that one that is killed has forgotten the last ones. Dropping this ends it.
#[derive(Debug)]
pub struct AzuriteServer {
    port: u16,
    /// Declared before the folder, so that it is dropped first.
    process: ServerProcess,
    _folder: TempDir,
}

impl AzuriteServer {
    /// Starts a server, and waits until it has its container.
    ///
    /// # Errors
    /// When it does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn start() -> Outcome<Self> {
        let programs = kept(PACKAGE, install)?;
        let start = || async {
            let (port, folder) =
                (free_port()?, tempfile::Builder::new().prefix("distlock-azurite-").tempdir()?);
            let mut command = Command::new("node");
            command.arg(programs.join("node_modules/azurite/dist/src/blob/main.js"));
            command.args(["--silent", "--disableTelemetry", "--skipApiVersionCheck"]);
            command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()]);
            command.arg("--location").arg(folder.path());
            let process = ServerProcess::start("azurite", command, folder.path(), MISSING)?;
            let server = Self { port, process, _folder: folder };
            server.ready().await?;
            let mut command = Command::new("node");
            command.args(["-e", include_str!("container.js"), "--"]);
            run(command.args([&server.address().to_string(), ACCOUNT, KEY, CONTAINER]), MISSING)?;
            Ok(server)
        };
        on_free_ports(None, start).await
    }

    async fn ready(&self) -> Outcome {
        let check = || async { TcpStream::connect(self.address()).await.map(drop).map_err(Failure::from) };
        self.process.ready(check).await
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Returns a URL for a client that reaches it at `address`, itself or through a proxy, with the locks below a prefix. Options
    /// can follow.
    pub fn url_at(address: SocketAddr, prefix: &str) -> String {
        format!("az://{}{CONTAINER}/{prefix}?endpoint=http://{address}/{ACCOUNT}", url::login(ACCOUNT, KEY))
    }
}

process_methods!(AzuriteServer);

fn install(folder: &Path) -> Outcome {
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]).arg(folder).arg(PACKAGE);
    run(&mut npm, MISSING).during(MISSING)
}
