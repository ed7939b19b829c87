//! The table of backends. No other code in the project chooses between them.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use lock_core::{ClientBuilder, ErrorKind, LockClient, LockError, LockUrl, Operation};

pub(crate) type Connecting = Pin<Box<dyn Future<Output = Result<LockClient, LockError>> + Send>>;

/// What a backend can do with a URL.
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    pub(crate) connect: fn(LockUrl, ClientBuilder) -> Connecting,
    /// The length of the lease that the URL asks for, if the backend has leases.
    pub(crate) lease_of: fn(&LockUrl) -> Result<Option<Duration>, LockError>,
}

/// One backend.
struct Driver {
    /// The cargo feature that includes it.
    feature: &'static str,
    schemes: &'static [&'static str],
    /// `None` when the feature is off.
    functions: Option<Functions>,
}

const DRIVERS: &[Driver] = &[
    Driver {
        feature: "memory",
        schemes: &["memory"],
        #[cfg(feature = "memory")]
        functions: Some(Functions {
            connect: |url, builder| {
                Box::pin(async move { lock_core::memory::MemoryServer::connect(&url, builder) })
            },
            lease_of: lock_core::memory::lease_of,
        }),
        #[cfg(not(feature = "memory"))]
        functions: None,
    },
    Driver {
        feature: "file",
        schemes: &["file"],
        #[cfg(all(feature = "file", unix))]
        functions: Some(Functions {
            connect: |url, builder| Box::pin(async move { lock_file::connect(&url, builder) }),
            lease_of: lock_file::lease_of,
        }),
        #[cfg(not(all(feature = "file", unix)))]
        functions: None,
    },
    Driver {
        feature: "redis",
        schemes: &["redis", "rediss", "unix"],
        #[cfg(feature = "redis")]
        functions: Some(Functions {
            connect: |url, builder| Box::pin(async move { lock_redis::connect(&url, builder).await }),
            lease_of: lock_redis::lease_of,
        }),
        #[cfg(not(feature = "redis"))]
        functions: None,
    },
    Driver {
        feature: "zookeeper",
        schemes: &["zookeeper"],
        #[cfg(feature = "zookeeper")]
        functions: Some(Functions {
            connect: |url, builder| Box::pin(async move { lock_zookeeper::connect(&url, builder).await }),
            lease_of: lock_zookeeper::lease_of,
        }),
        #[cfg(not(feature = "zookeeper"))]
        functions: None,
    },
    Driver {
        feature: "mysql",
        schemes: &["mysql", "mariadb"],
        #[cfg(feature = "mysql")]
        functions: Some(Functions {
            connect: |url, builder| Box::pin(async move { lock_mysql::connect(&url, builder).await }),
            lease_of: lock_mysql::lease_of,
        }),
        #[cfg(not(feature = "mysql"))]
        functions: None,
    },
];

/// Returns the functions for URLs of this scheme.
pub(crate) fn find(scheme: &str) -> Result<Functions, LockError> {
    let invalid = |cause: String| LockError::new(ErrorKind::InvalidOption, Operation::Connect).because(cause);
    let driver = DRIVERS.iter().find(|driver| driver.schemes.contains(&scheme)).ok_or_else(|| {
        invalid(format!("there is no backend for {scheme}: URLs"))
            .remedy(format!("the schemes that are compiled in: {}", compiled_in().join(", ")))
    })?;
    driver.functions.ok_or_else(|| {
        invalid(format!("the backend for {scheme}: URLs is not compiled in")).remedy(format!(
            "build distlock with the cargo feature {:?}, on a system that has it",
            driver.feature
        ))
    })
}

fn compiled_in() -> Vec<&'static str> {
    DRIVERS
        .iter()
        .filter(|driver| driver.functions.is_some())
        .flat_map(|driver| driver.schemes)
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_scheme_is_told_which_there_are() {
        let text = find("gopher").err().unwrap().to_string();
        assert!(text.contains("gopher"), "{text}");
        for scheme in compiled_in() {
            assert!(text.contains(scheme), "{text}");
        }
    }

    #[test]
    fn every_backend_knows_its_leases() {
        for (url, seconds) in [
            ("memory:", None),
            ("memory:?lease=6s", Some(6.0)),
            ("file:", None),
            ("redis://cache", Some(30.0)),
            ("redis://cache?lease=6s", Some(6.0)),
            ("zookeeper://h1,h2", Some(20.0 / 3.0)),
            ("zookeeper://h1?session_timeout=30s", Some(20.0)),
            ("mysql://db", Some(30.0)),
            ("mariadb://db?lease=6s", Some(6.0)),
        ] {
            let url = LockUrl::parse(url).unwrap();
            let Ok(functions) = find(url.scheme()) else { continue };
            let lease = (functions.lease_of)(&url).unwrap().map(|lease| lease.as_secs_f64());
            assert_eq!(lease.is_some(), seconds.is_some(), "{url}");
            let difference = lease.unwrap_or_default() - seconds.unwrap_or_default();
            assert!(difference.abs() < 1e-6, "{url}: {lease:?}");
        }
    }

    #[test]
    fn a_known_scheme_that_is_left_out_names_its_feature() {
        for driver in DRIVERS {
            match find(driver.schemes[0]) {
                Ok(_) => assert!(driver.functions.is_some()),
                Err(error) => assert!(error.to_string().contains(driver.feature), "{error}"),
            }
        }
    }
}
