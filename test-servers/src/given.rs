//! A server that the user has, and that tests attach to instead of starting one.

use std::env::{self, VarError};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};

use crate::{Failure, Outcome};

/// A server that the user names, as in `DISTLOCK_TEST_REDIS=redis://user:password@host:6379`. Tests use it like any
/// client: through proxies, below names of their own, and they neither stop nor change it.
#[derive(Clone)]
pub struct GivenServer {
    /// What is before the address.
    front: String,
    address: SocketAddr,
    path: String,
    /// Begins with `?` unless it is empty.
    options: String,
}

impl GivenServer {
    /// Returns the server that the variable for `server` names, if there is one. Its URL has one of these schemes.
    ///
    /// # Errors
    /// When the variable contains no such URL. The message does not repeat it, because of the password.
    pub fn of(server: &str, schemes: &[&str]) -> Outcome<Option<Self>> {
        let variable = format!("DISTLOCK_TEST_{}", server.to_uppercase());
        let parsed = match env::var(&variable) {
            Ok(url) => Self::parsed(&url, schemes),
            Err(VarError::NotPresent) => return Ok(None),
            Err(VarError::NotUnicode(_)) => Err("it is not text"),
        };
        let of_what = |what| {
            let scheme = schemes.first().copied().unwrap_or_default();
            Failure::new(format!("{variable} has to be like {scheme}://user:password@host:port: {what}"))
        };
        parsed.map(Some).map_err(of_what)
    }

    fn parsed(url: &str, schemes: &[&str]) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").ok_or("it has no scheme")?;
        if !schemes.contains(&scheme) {
            return Err("it has another scheme; the proxies of the tests understand plain text only");
        }
        let (rest, options) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (login, host) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let address = host.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
        Ok(Self {
            front: format!("{scheme}://{login}"),
            address: address.ok_or("it names no host with a port, or the host is not known")?,
            path: path.to_owned(),
            options: options.to_owned(),
        })
    }

    /// Returns the address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL for a client that goes through a proxy at `address`, with `below` after its path. It ends so that
    /// options can follow.
    pub fn url_at(&self, address: SocketAddr, below: &str) -> String {
        let Self { front, path, options, .. } = self;
        let separator = if options.is_empty() { "?" } else { "&" };
        format!("{front}{address}{path}{below}{options}{separator}")
    }
}

/// Without the login.
impl fmt::Debug for GivenServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GivenServer").field("address", &self.address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_url_keeps_its_parts_and_leads_to_another_address() {
        let given = GivenServer::parsed("redis://us%40er:p@ss@127.0.0.1:7/3?db=1", &["redis"]).unwrap();
        let proxy = SocketAddr::from(([127, 0, 0, 1], 9));
        assert_eq!(given.url_at(proxy, "/x"), "redis://us%40er:p@ss@127.0.0.1:9/3/x?db=1&");
        let bare = GivenServer::parsed("redis://127.0.0.1:7", &["redis"]).unwrap();
        assert_eq!((bare.url_at(proxy, ""), bare.address().port()), ("redis://127.0.0.1:9?".to_owned(), 7));
        assert!(!format!("{given:?}").contains("p@ss"));
    }

    #[test]
    fn what_is_no_such_url_is_refused() {
        for url in
            ["127.0.0.1:7", "rediss://127.0.0.1:7", "redis://127.0.0.1", "redis://one:1,two:2", "redis://"]
        {
            assert!(GivenServer::parsed(url, &["redis"]).is_err(), "{url}");
        }
    }
}
