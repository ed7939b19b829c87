//! The one table of backends. Nothing else in the project chooses between them.

use std::future::Future;
use std::pin::Pin;

use lock_core::{ClientBuilder, ErrorKind, LockClient, LockError, LockUrl, Operation};

pub(crate) type Connecting = Pin<Box<dyn Future<Output = Result<LockClient, LockError>> + Send>>;

pub(crate) type Connect = fn(LockUrl, ClientBuilder) -> Connecting;

/// One backend.
struct Driver {
    /// The cargo feature that compiles it in.
    feature: &'static str,
    schemes: &'static [&'static str],
    /// `None` when the feature is left out.
    connect: Option<Connect>,
}

const DRIVERS: &[Driver] = &[
    Driver {
        feature: "memory",
        schemes: &["memory"],
        #[cfg(feature = "memory")]
        connect: Some(|url, builder| Box::pin(async move { lock_core::memory::connect(&url, builder) })),
        #[cfg(not(feature = "memory"))]
        connect: None,
    },
    Driver {
        feature: "file",
        schemes: &["file"],
        #[cfg(all(feature = "file", unix))]
        connect: Some(|url, builder| Box::pin(async move { lock_file::connect(&url, builder) })),
        #[cfg(not(all(feature = "file", unix)))]
        connect: None,
    },
    Driver {
        feature: "redis",
        schemes: &["redis", "rediss", "unix"],
        #[cfg(feature = "redis")]
        connect: Some(|url, builder| Box::pin(async move { lock_redis::connect(&url, builder).await })),
        #[cfg(not(feature = "redis"))]
        connect: None,
    },
    Driver {
        feature: "zookeeper",
        schemes: &["zookeeper"],
        #[cfg(feature = "zookeeper")]
        connect: Some(|url, builder| Box::pin(async move { lock_zookeeper::connect(&url, builder).await })),
        #[cfg(not(feature = "zookeeper"))]
        connect: None,
    },
];

/// How to connect to what `scheme` means.
pub(crate) fn find(scheme: &str) -> Result<Connect, LockError> {
    let invalid = |cause: String| LockError::new(ErrorKind::InvalidOption, Operation::Connect).because(cause);
    let driver = DRIVERS.iter().find(|driver| driver.schemes.contains(&scheme)).ok_or_else(|| {
        invalid(format!("there is no backend for {scheme}: URLs"))
            .remedy(format!("the schemes that are compiled in: {}", compiled_in().join(", ")))
    })?;
    driver.connect.ok_or_else(|| {
        invalid(format!("the backend for {scheme}: URLs is not compiled in")).remedy(format!(
            "build distlock with the cargo feature {:?}, on a system that has it",
            driver.feature
        ))
    })
}

fn compiled_in() -> Vec<&'static str> {
    DRIVERS
        .iter()
        .filter(|driver| driver.connect.is_some())
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
    fn a_known_scheme_that_is_left_out_names_its_feature() {
        for driver in DRIVERS {
            match find(driver.schemes[0]) {
                Ok(_) => assert!(driver.connect.is_some()),
                Err(error) => assert!(error.to_string().contains(driver.feature), "{error}"),
            }
        }
    }
}
