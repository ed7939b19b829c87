//! Checks a server before the client keeps locks on it.

use std::fmt;
use std::time::Duration;

use lock_core::{ErrorKind, LockError, Operation};
use lock_sql::{Row, not_primary};

use crate::run::Run;
use crate::session_tag::SessionTag;
use crate::statement::{self, READ_ONLY, TAG};

/// The oldest `MySQL` on which a session holds several locks.
const OLDEST_MYSQL: Version = Version(5, 7, 5);

/// The oldest `MariaDB` on which a session holds several locks.
const OLDEST_MARIADB: Version = Version(10, 0, 2);

/// The first versions in which a server may end slow statements, and in which a session can switch that off.
const MYSQL_LIMITS_STATEMENTS: Version = Version(5, 7, 8);
const MARIADB_LIMITS_STATEMENTS: Version = Version(10, 1, 1);

/// Servers that speak the protocol but lack these locks, by the names in their version texts.
const OTHERS: [&str; 2] = ["TiDB", "Vitess"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flavour {
    MySql,
    MariaDb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

impl Version {
    /// The first three numbers in the text.
    fn read(text: &str) -> Option<Self> {
        let mut numbers = text
            .split(|character: char| !character.is_ascii_digit())
            .filter(|part| !part.is_empty())
            .map(|part| part.parse().ok());
        Some(Self(numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0)))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// A server's description of itself on a new connection.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    version_text: String,
    pub(crate) connection: u64,
    is_read_only: bool,
    /// The tag of another client that has the session too, or had it; normally `0`.
    pub(crate) earlier_tag: String,
    pub(crate) run: Run,
    is_galera: bool,
    has_innodb: bool,
}

/// Address, number and time identify a [`Run`]. The time is correct only in a time zone in which no hour occurs twice.
///
/// The query asks for variables that only some servers have as rows, which may be missing. A read-only instance of Aurora says so
/// with `innodb_read_only`. Neither changes while a server runs.
pub(crate) fn question() -> String {
    format!(
        "SET /*distlock connect*/ SESSION sql_select_limit=DEFAULT,SESSION time_zone='+00:00';\
         SELECT VERSION(),CAST(CONNECTION_ID() AS CHAR),{READ_ONLY},CONCAT_WS(':',@@hostname,@@port),\
         CAST(UUID_SHORT() AS CHAR),CAST(UNIX_TIMESTAMP(NOW(6)) AS CHAR),{TAG};\
         SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on','wsrep_provider','innodb_read_only')"
    )
}

impl Facts {
    /// Reads the answers to the [`question`].
    pub(crate) fn read(rows: &[Row]) -> Option<Self> {
        let (row, variables) = rows.split_first()?;
        let [version, connection, is_read_only, address, number, now, tag] = row.as_slice() else {
            return None;
        };
        let address = address.as_deref().unwrap_or_default().chars();
        // Characters that would need an escape in a statement do not help to tell servers apart.
        let address: String = address.filter(|c| c.is_ascii_alphanumeric() || "-._:".contains(*c)).collect();
        let now = Duration::try_from_secs_f64(now.as_deref()?.parse().ok()?).ok()?;
        let setting = |name: &str| {
            let row =
                variables.iter().find(|row| row.first().is_some_and(|key| key.as_deref() == Some(name)));
            row.and_then(|row| row.get(1)).and_then(Option::as_deref).unwrap_or_default()
        };
        Some(Self {
            version_text: version.clone()?,
            connection: connection.as_deref()?.parse().ok()?,
            is_read_only: statement::is_read_only(is_read_only.as_deref()?)
                || setting("innodb_read_only") == "ON",
            has_innodb: !setting("innodb_read_only").is_empty(),
            earlier_tag: tag.clone()?,
            run: Run::new(&address, number.as_deref()?.parse().ok()?, now),
            is_galera: setting("wsrep_on") == "ON" && !matches!(setting("wsrep_provider"), "" | "none"),
        })
    }

    fn flavour(&self) -> Flavour {
        if self.version_text.contains("MariaDB") { Flavour::MariaDb } else { Flavour::MySql }
    }

    /// After how many attempts a session begins with what is prepared, if what this gets need not be a variable, as from `MariaDB` 10.2.3 on.
    /// The first one is whole, so that a client that takes one lock pays nothing.
    pub(crate) fn prepared_after(&self) -> Option<u8> {
        (self.flavour() == Flavour::MariaDb && self.version() >= Some(Version(10, 2, 3))).then_some(1)
    }

    fn version(&self) -> Option<Version> {
        // Some versions of MariaDB prefix 5.5.5-, for clients that know no higher number.
        let text = match self.flavour() {
            Flavour::MariaDb => self.version_text.strip_prefix("5.5.5-").unwrap_or(&self.version_text),
            Flavour::MySql => &self.version_text,
        };
        Version::read(text)
    }

    /// Refuses a server that cannot keep the guarantees.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        let unsupported =
            |cause: String| LockError::new(ErrorKind::Unsupported, Operation::Connect).because(cause);
        let (name, oldest) = match self.flavour() {
            Flavour::MySql => ("MySQL", OLDEST_MYSQL),
            Flavour::MariaDb => ("MariaDB", OLDEST_MARIADB),
        };
        if let Some(other) = OTHERS.iter().find(|other| self.version_text.contains(*other)) {
            return Err(unsupported(format!("the server is {other}, whose named locks are of another kind"))
                .remedy("connect to MySQL or MariaDB"));
        }
        if self.version().is_some_and(|version| version < oldest) {
            return Err(unsupported(format!(
                "the server is {name} {}, and distlock needs {oldest}: before, a second lock of a session frees \
                 the first",
                self.version_text
            ))
            .remedy("update the server"));
        }
        if self.is_galera {
            return Err(unsupported(
                "the server is a node of a Galera cluster, which has no named locks".to_owned(),
            )
            .remedy("connect to a server that is not part of one"));
        }
        if self.is_read_only {
            return Err(not_primary(Operation::Connect));
        }
        Ok(())
    }

    /// The statements that prepare a connection for locks. The server frees it after `lease_seconds` of silence, and ends no wait
    /// for a lock early. A statement that writes a token does not wait, because other attempts' locks may be on the same
    /// connection. The session gets its tag, and takes the lock of the tag.
    ///
    /// The answer is that to a question about the connection's number, which differs if a proxy spreads one connection over
    /// several.
    pub(crate) fn settings(&self, lease_seconds: u64, tag: SessionTag) -> String {
        let version = self.version();
        let limit = match self.flavour() {
            Flavour::MySql if version.is_none_or(|version| version >= MYSQL_LIMITS_STATEMENTS) => {
                ",SESSION max_execution_time=0"
            }
            Flavour::MariaDb if version.is_none_or(|version| version >= MARIADB_LIMITS_STATEMENTS) => {
                ",SESSION max_statement_time=0"
            }
            _ => "",
        };
        let rows = if self.has_innodb { ",SESSION innodb_lock_wait_timeout=1" } else { "" };
        format!(
            "SET /*distlock connect*/ SESSION wait_timeout={lease_seconds}{limit},SESSION autocommit=1,\
             SESSION lock_wait_timeout=1{rows},@distlock={};\
             SET SESSION TRANSACTION READ WRITE;\
             SELECT CAST(CONNECTION_ID() AS CHAR),CAST(@@session.wait_timeout AS CHAR),\
             CAST(GET_LOCK('{}',0) AS CHAR)",
            tag.number(),
            tag.lock()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(version: &str, read_only: &str, galera: &str) -> Facts {
        let text = |text: &str| Some(text.to_owned());
        let number = (3_u64 << 56) | (1_700_000_000 << 24) | 9;
        let (number, now) = (number.to_string(), "1700000500.250000");
        let row =
            [text(version), text("7"), text(read_only), text("h':3306"), text(&number), text(now), text("0")];
        let variables = [("wsrep_on", galera), ("wsrep_provider", "/lib/x.so"), ("innodb_read_only", "OFF")];
        let variables = variables.map(|(name, value)| vec![text(name), text(value)]);
        Facts::read(&[&[row.to_vec()][..], &variables].concat()).unwrap()
    }

    #[test]
    fn a_good_server_passes() {
        for version in ["5.7.29", "8.0.36-log", "8.4.0", "10.11.19-MariaDB-0+deb12u1", "5.5.5-10.4.8-MariaDB"]
        {
            facts(version, "0", "OFF").check().unwrap();
        }
        assert_eq!(facts("5.7.29", "0", "OFF").connection, 7);
        assert_eq!(facts("5.7.29", "0", "OFF").run.to_string(), "h:3306:3:1700000000");
    }

    #[test]
    fn a_server_that_cannot_keep_the_promise_is_refused() {
        for (facts, part) in [
            (facts("5.6.50", "0", "OFF"), "5.7.5"),
            (facts("5.5.5-10.0.1-MariaDB", "0", "OFF"), "10.0.2"),
            (facts("5.7.25-TiDB-v7.1.0", "0", "OFF"), "TiDB"),
            (facts("8.0.40-Vitess", "0", "OFF"), "Vitess"),
            (facts("10.11.19-MariaDB", "0", "ON"), "Galera"),
            (facts("8.0.36", "1", "OFF"), "primary"),
            (facts("11.8.2-MariaDB", "NO_LOCK", "OFF"), "primary"),
        ] {
            let text = facts.check().unwrap_err().to_string();
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn each_is_told_in_its_own_words_to_let_waits_take_long() {
        assert!(
            facts("5.7.29", "0", "OFF").settings(30, SessionTag::new(8)).contains("max_execution_time=0")
        );
        assert!(
            facts("10.11.19-MariaDB", "0", "OFF")
                .settings(30, SessionTag::new(8))
                .contains("max_statement_time=0")
        );
        assert!(!facts("5.7.6", "0", "OFF").settings(30, SessionTag::new(8)).contains("max_execution_time"));
        let settings = facts("5.7.29", "0", "OFF").settings(30, SessionTag::new(8));
        for part in ["wait_timeout=30", "@distlock=4;", "GET_LOCK('distlock+0000000000000004',0)"] {
            assert!(settings.contains(part), "{settings}");
        }
    }
}
