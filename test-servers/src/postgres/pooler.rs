//! A pgbouncer in front of a PostgreSQL server.

use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;

use super::{Postgres, PostgresServer};
use crate::server::{Kind, Place};
use crate::{Outcome, Server, ServerOptions};

/// Debian installs it where only administrators have it in their path.
const PATH: &str = "/usr/sbin/pgbouncer";

/// What a pgbouncer has of its own. The server is in its properties.
#[derive(Debug)]
pub struct Pooler;

/// A pgbouncer, for the first user of a server.
pub type PgBouncer = Server<Pooler>;

impl Kind for Pooler {
    const NAME: &str = "pgbouncer";
    const MISSING: &str = "pgbouncer is not installed: install it (on Debian and Ubuntu: apt-get install pgbouncer), or leave \
                           its tests out with DISTLOCK_SKIP=pgbouncer";

    fn find(_options: &mut ServerOptions) -> Outcome<Self> {
        Ok(Self)
    }

    fn command(&self, place: &Place) -> Outcome<Command> {
        let (configuration, users) = (place.path("pgbouncer.ini"), place.path("users"));
        let (options, postgres) = (&place.options, Postgres::installed());
        let logins = options.users.iter().map(|user| format!("\"{}\" \"{}\"\n", user.name, user.password));
        fs::write(&users, logins.collect::<String>())?;
        let servers = options.properties.iter().map(|(name, server)| format!("{name} = {server}\n"));
        let text = format!(
            "[databases]\n{}[pgbouncer]\nlisten_addr={}\nlisten_port={}\nunix_socket_dir=\nauth_type=md5\n\
             auth_file={users}\n{}",
            servers.collect::<String>(),
            Ipv4Addr::LOCALHOST,
            place.port,
            options.lines('='),
        );
        fs::write(&configuration, text)?;
        postgres.give(place.folder.path())?;
        let mut command = postgres.program_at(PATH);
        command.arg(configuration);
        Ok(command)
    }
}

impl PostgresServer {
    /// Starts a pooler, which gives a session of the server to the next client after a `session`, a `transaction` or a `statement`,
    /// with these settings, and waits until it accepts connections.
    ///
    /// # Errors
    /// When it does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends it.
    pub async fn pooler(&self, mode: &str, settings: &[(&str, &str)]) -> Outcome<PgBouncer> {
        let (login, address) = (&self.place.options.users[0], self.address());
        let options = ServerOptions::new()
            .user(&login.name, &login.password, &[])
            .property("*", &format!("host={} port={}", address.ip(), address.port()))
            .setting("pool_mode", mode);
        let with = |options: ServerOptions, (name, value): &(&str, &str)| options.setting(name, value);
        PgBouncer::start_with(settings.iter().fold(options, with)).await
    }
}
