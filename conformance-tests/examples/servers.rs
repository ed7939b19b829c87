//! Starts a server for somebody who wants to try something, until Ctrl-C: `cargo xtask servers redis --tls`.
//!
//! It listens on the loopback address alone, keeps its data in a temporary folder, and leaves nothing behind.

use std::process::ExitCode;

#[cfg(unix)]
mod run {
    use std::process::ExitCode;

    use conformance_tests::Outcome;
    use conformance_tests::servers::{RedisOptions, RedisServer};
    use tokio::signal::unix::{SignalKind, signal};

    const USAGE: &str = "Usage: cargo xtask servers redis [--port PORT] [--tls]

Starts a redis-server on this machine, until Ctrl-C. What it stores is lost with it.

  --port PORT  listens there instead of on a free port
  --tls        speaks TLS alone, with an authority of its own, and wants a certificate of every client";

    /// Exit code for a command line that is not understood.
    const USAGE_ERROR: u8 = 64;

    pub(super) fn main() -> ExitCode {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        if arguments.iter().any(|argument| ["help", "-h", "--help"].contains(&argument.as_str())) {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        let options = match understand(&arguments) {
            Ok(options) => options,
            Err(problem) => {
                eprintln!("error: {problem}\n\n{USAGE}");
                return ExitCode::from(USAGE_ERROR);
            }
        };
        match serve(options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("error: {failure}");
                ExitCode::FAILURE
            }
        }
    }

    fn understand(arguments: &[String]) -> Result<RedisOptions, String> {
        let mut arguments = arguments.iter().map(String::as_str);
        match arguments.next() {
            Some("redis") => {}
            Some(other) => return Err(format!("there is no server {other:?} here")),
            None => return Err("which server?".to_owned()),
        }
        let mut options = RedisOptions::new();
        while let Some(argument) = arguments.next() {
            options = match argument {
                "--tls" => options.tls_with_client_certificates(),
                "--port" => {
                    let port = arguments.next().and_then(|port| port.parse().ok());
                    options.port(port.ok_or("--port wants a number between 1 and 65535")?)
                }
                other => return Err(format!("{other:?} is not understood")),
            };
        }
        Ok(options)
    }

    fn serve(options: RedisOptions) -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (mut interrupt, mut terminate) =
                (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
            let server = RedisServer::start_with(options).await?;
            introduce(&server);
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            println!();
            Ok(())
        })
    }

    fn introduce(server: &RedisServer) {
        let (url, port) = (server.url(), server.address().port());
        let encryption = server.certificates().map_or_else(String::new, |files| {
            let path = |path: &std::path::Path| path.display().to_string();
            let (certificate, key) = (path(&files.client.certificate), path(&files.client.key));
            format!(" --tls --cacert {} --cert {certificate} --key {key}", path(&files.authority))
        });
        println!(
            "redis-server is ready, until Ctrl-C:

  {url}
  {}

Try it in another terminal:

  export DISTLOCK_URL='{url}'
  cargo run -p distlock-cli -- exec nightly-report -- echo \"only one of us at a time\"
  redis-cli -p {port}{encryption} monitor",
            server.unix_url()
        );
    }
}

#[cfg(unix)]
fn main() -> ExitCode {
    run::main()
}

#[cfg(not(unix))]
fn main() -> ExitCode {
    eprintln!("error: servers are started on Unix systems only");
    ExitCode::FAILURE
}
