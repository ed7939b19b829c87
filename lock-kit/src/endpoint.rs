//! Where a server listens.

use std::fmt;
use std::path::PathBuf;

use lock_core::LockError;

use crate::failure::invalid;
use crate::tls::TlsOptions;
use crate::url::LockUrl;

/// Where a server listens.
///
/// ```
/// use lock_kit::LockUrl;
/// use lock_kit::Endpoint;
///
/// let url = LockUrl::parse("server://[::1]:7000/0")?;
/// let endpoint = Endpoint::parse(url.hosts(), 6379, "server://host:6379")?;
/// assert_eq!(endpoint, Endpoint::Tcp { host: "::1".to_owned(), port: 7000 });
/// assert_eq!(endpoint.to_string(), "[::1]:7000");
/// # Ok::<(), lock_core::LockError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A TCP port. An IPv6 address has no brackets here.
    Tcp {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket at this path.
    Socket(PathBuf),
}

impl Endpoint {
    /// Reads the hosts of a URL: one host, with or without a port; an IPv6 address stands in brackets. `example` is a
    /// URL for the remedies of the errors.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) for no host, for several hosts, and for a port that is not a number.
    pub fn parse(hosts: &str, default_port: u16, example: &str) -> Result<Self, LockError> {
        if hosts.contains(',') {
            return Err(invalid("the URL names several servers, and a lock lives on one")
                .remedy("name the primary, or an address that follows it"));
        }
        let (host, port) = split_port(hosts);
        if host.is_empty() {
            return Err(invalid("the URL names no server").remedy(format!("write {example}")));
        }
        let is_bare_address = host.contains(':') && !hosts.starts_with('[');
        let port =
            if is_bare_address { None } else { port.map_or(Some(default_port), |port| port.parse().ok()) };
        let Some(port) = port else {
            return Err(invalid("the port is not a number")
                .remedy(format!("write {example}, and an IPv6 address in brackets")));
        };
        Ok(Self::Tcp { host: host.to_owned(), port })
    }

    /// Reads the hosts of a URL, or its option `socket`, the path of a Unix socket. `example` is a URL for the remedies of
    /// the errors.
    ///
    /// # Errors
    /// Those of [`Endpoint::parse`]; [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) for a socket of
    /// another machine, and for a relative path.
    pub fn of_url(url: &LockUrl, default_port: u16, example: &str) -> Result<Self, LockError> {
        match url.options().take("socket") {
            None => Self::parse(url.hosts(), default_port, example),
            Some(path) if matches!(url.hosts(), "" | "localhost") && path.starts_with('/') => {
                Ok(Self::Socket(path.into()))
            }
            Some(_) => Err(invalid("a socket is on this machine and has an absolute path").remedy(format!(
                "write {}://user@localhost/database?socket=/path/to/the.socket",
                url.scheme()
            ))),
        }
    }

    /// Refuses TLS at a Unix socket, which has none.
    ///
    /// ```
    /// use lock_kit::{Endpoint, TlsOptions};
    ///
    /// let socket = Endpoint::Socket("/run/server.sock".into());
    /// assert!(socket.check(None).is_ok());
    /// assert!(socket.check(Some(&TlsOptions::new())).is_err());
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) when both are asked for.
    pub fn check(&self, tls: Option<&TlsOptions>) -> Result<(), LockError> {
        match (self, tls) {
            (Self::Socket(_), Some(_)) => Err(invalid("a Unix socket has no TLS")
                .remedy("leave the options of TLS out, or connect to the server's TCP port")),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(formatter, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(formatter, "{host}:{port}"),
            Self::Socket(path) => path.display().fmt(formatter),
        }
    }
}

/// Splits `host`, `host:port`, `[address]` or `[address]:port` into the host, without brackets, and the port as text.
///
/// ```
/// use lock_kit::split_port;
///
/// assert_eq!(split_port("cache:7000"), ("cache", Some("7000")));
/// assert_eq!(split_port("[::1]"), ("::1", None));
/// ```
pub fn split_port(server: &str) -> (&str, Option<&str>) {
    match server.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        // Without a colon in between, there is a port that is not a number.
        Some((host, rest)) => (host, Some(rest.strip_prefix(':').unwrap_or("?"))),
        None => server.rsplit_once(':').map_or((server, None), |(host, port)| (host, Some(port))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(hosts: &str) -> Result<Endpoint, LockError> {
        Endpoint::parse(hosts, 6379, "server://host:6379")
    }

    #[test]
    fn reads_a_host_with_and_without_a_port() {
        for (hosts, shown) in [
            ("cache", "cache:6379"),
            ("cache:7000", "cache:7000"),
            ("10.0.0.1:7000", "10.0.0.1:7000"),
            ("[::1]", "[::1]:6379"),
            ("[::1]:7000", "[::1]:7000"),
        ] {
            assert_eq!(parse(hosts).unwrap().to_string(), shown);
        }
        assert_eq!(Endpoint::Socket("/run/x.sock".into()).to_string(), "/run/x.sock");
    }

    #[test]
    fn refuses_what_is_no_server_and_says_what_to_write() {
        for (hosts, part) in [
            ("", "server://host:6379"),
            (":6379", "names no server"),
            ("a,b", "primary"),
            ("cache:", "not a number"),
            ("cache:port", "not a number"),
            ("cache:70000", "not a number"),
            ("[::1]7000", "not a number"),
            ("fe80::1:7000", "brackets"),
        ] {
            let text = parse(hosts).unwrap_err().to_string();
            assert!(text.contains(part), "{hosts}: {text}");
        }
    }

    #[test]
    fn a_socket_has_no_tls() {
        let (socket, tls) = (Endpoint::Socket("/run/x.sock".into()), TlsOptions::new());
        let error = socket.check(Some(&tls)).unwrap_err();
        assert!(error.to_string().contains("leave the options of TLS out"), "{error}");
        socket.check(None).unwrap();
        parse("cache").unwrap().check(Some(&tls)).unwrap();
    }
}
