//! The options of a backend, each of which is named in one place.

use std::future::Future;
use std::time::Duration;

use lock_core::{ClientBuilder, LockClient, LockError};

use crate::url::{LockUrl, UrlOptions, UsualParameter};

/// The options of a backend, with the defaults in [`Default`].
///
/// [`visit`](BackendOptions::visit) is their table: for each option the name, the place, the limits. A
/// [driver](crate::Driver::of) reads URLs with it, and says which options there are; [`check`](BackendOptions::check) does
/// the same to what a program has set. What an option means stands at its field and on the backend's page.
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::{ClientBuilder, LockClient, LockError, Reach};
/// use lock_kit::{BackendOptions, Driver, LockUrl, UrlOptions};
/// use lock_memory::{MemoryOptions, MemoryServer};
///
/// /// A shelf of this process.
/// #[derive(Clone)]
/// struct ShelfOptions {
///     /// How long a lock stays without a renewal.
///     lease: Duration,
///     name: String,
/// }
///
/// impl Default for ShelfOptions {
///     fn default() -> Self {
///         Self { lease: Duration::from_secs(10), name: String::new() }
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
///         MemoryServer::named(&self.name).client_with(MemoryOptions::new().lease(self.lease), builder)
///     }
/// }
///
/// static DRIVER: Driver = Driver::of::<ShelfOptions>("shelf", &["shelf"])
///     .summary("locks on a shelf of this process")
///     .reach(Reach::Process)
///     .examples(&["shelf:top?lease=30s"]);
/// assert_eq!((DRIVER.options)()["lease"].as_deref(), Some("10s"));
/// ```
pub trait BackendOptions: Default + Clone + Send + 'static {
    /// What URLs of this server have in other programs.
    const USUAL: &'static [UsualParameter] = &[];

    /// Returns the options of the server that the URL names, as they are without the options of the URL.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption), with what to write instead.
    fn of_url(url: &LockUrl) -> Result<Self, LockError>;

    /// Takes each option of the URL into its place, and checks it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption), naming the option.
    fn visit(&mut self, options: &mut UrlOptions) -> Result<(), LockError>;

    /// Checks the options that a program has set.
    ///
    /// # Errors
    /// Those of [`BackendOptions::visit`].
    fn check(&self) -> Result<(), LockError> {
        self.clone().visit(&mut UrlOptions::default())
    }

    /// Returns the length of the lease; `None` for locks without one.
    fn lease(&self) -> Option<Duration>;

    /// Connects to the server.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) for options that do not fit together, and what the
    /// server answers.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt to connect.
    fn connect(self, builder: ClientBuilder) -> impl Future<Output = Result<LockClient, LockError>> + Send;
}

/// Connects to the server that a URL names.
///
/// # Errors
/// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) for an option that the backend does not have, and the
/// errors of [`BackendOptions`].
///
/// # Cancel safety
/// Dropping the future ends the attempt to connect.
pub async fn connect<O: BackendOptions>(
    url: &LockUrl,
    builder: ClientBuilder,
) -> Result<LockClient, LockError> {
    let (options, mut rest) = read::<O>(url)?;
    let builder = rest.configure(builder)?;
    rest.finish()?;
    options.connect(builder).await
}

/// Reads a URL, but for the options that all backends share.
///
/// # Errors
/// Those of [`BackendOptions`].
pub fn read<O: BackendOptions>(url: &LockUrl) -> Result<(O, UrlOptions), LockError> {
    let mut given = url.options();
    let options = take(url, &mut given)?;
    Ok((options, given))
}

/// Takes what a backend has out of these options of the URL.
pub(crate) fn take<O: BackendOptions>(url: &LockUrl, given: &mut UrlOptions) -> Result<O, LockError> {
    given.understand(O::USUAL)?;
    let mut options = O::of_url(url)?;
    options.visit(given)?;
    Ok(options)
}
