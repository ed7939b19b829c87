//! Finds the backend of a scheme: one that is compiled in, or one that the program has registered.

use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use crate::backends::{BACKENDS, Backend};
use crate::connection::LockUrl;
use crate::spi::Driver;
use crate::{ErrorKind, LockError, Operation};

static REGISTERED: RwLock<Vec<Driver>> = RwLock::new(Vec::new());

/// Adds a backend from outside this crate. From then on, [`connect`](crate::connect),
/// [`connect_with`](crate::connect_with) and [`lease_of`] know its schemes in the whole process.
///
/// A program calls this once for each backend, before it connects.
///
/// ```
/// # #[cfg(feature = "testing")]
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use std::time::Duration;
///
/// use distlock::connection::{self, LockUrl};
/// use distlock::spi::{BackendOptions, Driver, UrlOptions};
/// use distlock::testing::{MemoryOptions, MemoryServer};
/// use distlock::{ClientBuilder, LockClient, LockError};
///
/// /// A backend whose server is in memory: `shelf:NAME`.
/// static SHELF: Driver =
///     Driver::of::<ShelfOptions>("shelf", &["shelf"]).summary("locks on a shelf").examples(&["shelf:top"]);
///
/// #[derive(Clone)]
/// struct ShelfOptions {
///     name: String,
///     lease: Duration,
/// }
///
/// impl Default for ShelfOptions {
///     fn default() -> Self {
///         Self { name: String::new(), lease: Duration::from_secs(10) }
///     }
/// }
///
/// impl BackendOptions for ShelfOptions {
///     fn of_url(url: &LockUrl) -> Result<Self, LockError> {
///         Ok(Self { name: url.path().to_owned(), ..Self::default() })
///     }
///
///     fn visit(&mut self, options: &mut UrlOptions) -> Result<(), LockError> {
///         options.duration("lease", &mut self.lease, Duration::from_secs(1)..=Duration::MAX)
///     }
///
///     fn lease(&self) -> Option<Duration> {
///         Some(self.lease)
///     }
///
///     async fn connect(self, builder: ClientBuilder) -> Result<LockClient, LockError> {
///         let builder = builder.server(format!("shelf:{}", self.name));
///         MemoryServer::named(&self.name).client_with(MemoryOptions::new().lease(self.lease), builder)
///     }
/// }
///
/// distlock::register(SHELF)?;
/// assert_eq!(connection::lease_of("shelf:top?lease=6s")?, Some(Duration::from_secs(6)));
///
/// let locks = distlock::connect("shelf:top").await?;
/// let guard = locks.mutex("orders/42")?.acquire().await?;
/// guard.release().await?;
/// # Ok::<(), LockError>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidOption`] when the backend has no scheme, a scheme cannot be that of a URL, or a scheme is taken:
/// by another backend that was registered, or by one of this crate, whether or not its cargo feature is on.
pub fn register(driver: Driver) -> Result<(), LockError> {
    let refused = |cause: String| {
        LockError::new(ErrorKind::InvalidOption, Operation::Configure)
            .because(format!("the backend {:?} cannot be registered: {cause}", driver.name))
    };
    if driver.schemes.is_empty() {
        return Err(refused("it has no scheme".to_owned()).remedy("name at least one scheme"));
    }
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    for scheme in driver.schemes {
        if !is_scheme(scheme) {
            return Err(refused(format!("{scheme:?} cannot be the scheme of a URL"))
                .remedy("begin with a letter, and use lower-case letters, digits, '+', '-' and '.'"));
        }
        if let Some(owner) = owner_of(scheme, &registered) {
            return Err(refused(format!("the scheme {scheme:?} is that of the backend {owner:?}"))
                .remedy("choose another scheme, and register each backend once"));
        }
    }
    registered.push(driver);
    Ok(())
}

/// Returns the backends that URLs can name: those that are compiled in, and after them those that were registered.
///
/// ```
/// for driver in distlock::connection::drivers() {
///     println!("{}: {}, such as {:?}", driver.name, driver.summary, driver.examples.first());
/// }
/// ```
pub fn drivers() -> Vec<Driver> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    BACKENDS.iter().filter_map(|backend| backend.driver).chain(registered.iter()).copied().collect()
}

/// Returns the length of the lease that `url` asks for, without connecting; `None` when locks have no lease.
///
/// The abort margin has to fit into this length: a third of it leaves time for renewals. A server may grant a different
/// length.
///
/// ```
/// # #[cfg(feature = "memory")]
/// assert_eq!(distlock::connection::lease_of("memory:")?, None);
/// # Ok::<(), distlock::LockError>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidOption`] for a URL that cannot be parsed, a scheme that is unknown or whose cargo feature is
/// off, or a length that makes no sense. The other options are checked when connecting.
pub fn lease_of(url: impl AsRef<str>) -> Result<Option<Duration>, LockError> {
    let url = LockUrl::parse(url.as_ref())?;
    (find(url.scheme())?.lease_of)(&url)
}

/// Returns the backend for URLs of this scheme.
pub(crate) fn find(scheme: &str) -> Result<Driver, LockError> {
    let drivers = drivers();
    if let Some(driver) = drivers.iter().find(|driver| driver.schemes.contains(&scheme)) {
        return Ok(*driver);
    }
    let invalid = |cause: String| LockError::new(ErrorKind::InvalidOption, Operation::Connect).because(cause);
    if let Some(backend) = built_in(scheme) {
        return Err(invalid(format!("the backend for {scheme}: URLs is not compiled in")).remedy(format!(
            "build distlock with the cargo feature {:?}, on a system that has it",
            backend.feature
        )));
    }
    let known: Vec<_> = drivers.iter().flat_map(|driver| driver.schemes).copied().collect();
    Err(invalid(format!("there is no backend for {scheme}: URLs"))
        .remedy(format!("the schemes are: {}", known.join(", "))))
}

fn built_in(scheme: &str) -> Option<&'static Backend> {
    BACKENDS.iter().find(|backend| backend.schemes.contains(&scheme))
}

fn owner_of(scheme: &str, registered: &[Driver]) -> Option<&'static str> {
    let stranger = registered.iter().find(|driver| driver.schemes.contains(&scheme));
    built_in(scheme).map(|backend| backend.feature).or(stranger.map(|driver| driver.name))
}

/// Whether a URL can begin with it.
fn is_scheme(scheme: &str) -> bool {
    LockUrl::parse(&format!("{scheme}:")).is_ok_and(|url| url.scheme() == scheme)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spi::{BackendOptions, UrlOptions};
    use crate::{ClientBuilder, LockClient};

    #[test]
    fn an_error_about_an_unknown_scheme_names_those_there_are() {
        let text = find("gopher").err().unwrap().to_string();
        assert!(text.contains("gopher"), "{text}");
        for scheme in BACKENDS.iter().filter_map(|backend| backend.driver).flat_map(|driver| driver.schemes) {
            assert!(text.contains(scheme), "{text}");
        }
    }

    #[test]
    fn a_known_scheme_that_is_left_out_names_its_feature() {
        for backend in BACKENDS {
            for scheme in backend.schemes {
                match find(scheme) {
                    Ok(driver) => assert_eq!(driver.name, backend.feature),
                    Err(error) => {
                        assert!(backend.driver.is_none());
                        assert!(error.to_string().contains(backend.feature), "{error}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_table_says_what_the_drivers_say() {
        for backend in BACKENDS {
            let Some(driver) = backend.driver else { continue };
            assert_eq!((driver.name, driver.schemes), (backend.feature, backend.schemes));
        }
    }

    #[test]
    fn a_backend_without_leases_says_so_and_a_url_can_ask_for_one() {
        for (url, seconds) in [("memory:", None), ("memory:?lease=6s", Some(6)), ("file:", None)] {
            let url = LockUrl::parse(url).unwrap();
            let Ok(driver) = find(url.scheme()) else { continue };
            assert_eq!((driver.lease_of)(&url).unwrap(), seconds.map(Duration::from_secs), "{url}");
        }
    }

    /// Options of a backend that no client reaches.
    #[derive(Clone, Default)]
    struct Nowhere;

    impl BackendOptions for Nowhere {
        fn of_url(_: &LockUrl) -> Result<Self, LockError> {
            Ok(Self)
        }

        fn visit(&mut self, _: &mut UrlOptions) -> Result<(), LockError> {
            Ok(())
        }

        fn lease(&self) -> Option<Duration> {
            None
        }

        async fn connect(self, _: ClientBuilder) -> Result<LockClient, LockError> {
            Err(LockError::new(ErrorKind::Unreachable, Operation::Connect))
        }
    }

    const fn of(name: &'static str, schemes: &'static [&'static str]) -> Driver {
        Driver::of::<Nowhere>(name, schemes)
    }

    #[test]
    fn a_backend_that_was_registered_is_found_and_its_schemes_are_taken() {
        register(of("attic", &["attic", "loft+tls"])).unwrap();
        assert_eq!(find("loft+tls").unwrap().name, "attic");
        assert!(drivers().iter().any(|driver| driver.name == "attic"));
        let text = register(of("other", &["cellar", "attic"])).unwrap_err().to_string();
        assert!(text.contains("\"attic\" is that of the backend \"attic\""), "{text}");
        assert!(find("cellar").is_err(), "a backend that is refused leaves nothing behind");
    }

    #[test]
    fn a_scheme_of_this_crate_is_taken_even_when_its_feature_is_off() {
        for backend in BACKENDS {
            let text = register(of("other", backend.schemes)).unwrap_err().to_string();
            assert!(text.contains(backend.feature), "{text}");
        }
    }

    #[test]
    fn a_scheme_that_no_url_can_have_is_refused() {
        for schemes in [&["Upper"] as &[_], &[""], &["1st"], &["a:b"], &["a b"], &[]] {
            register(of("other", schemes)).unwrap_err();
        }
    }
}
