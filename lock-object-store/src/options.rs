//! The options of a client: which bucket, how it keeps the locks, and how to connect.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Backend, BackendContext, Capabilities, CharacterSet, ClientBuilder, LockClient, LockError, NameRules,
    Operation, Password,
};
use lock_kit::{BackendOptions, Driver, LONGEST_LEASE, LockUrl, UrlOptions, connect_backend, invalid};
use lock_register::{RegisterBackend, RegisterOptions};
use object_store::RetryConfig;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;

use crate::objects::{Objects, Store, unusable};

/// Shorter ones would leave too little time for requests that take long.
const SHORTEST_LEASE: Duration = Duration::from_secs(5);

const LONGEST_PREFIX: usize = 200;

/// How long it may take to get a password.
const PASSWORD_WITHIN: Duration = Duration::from_secs(3);

/// Google refuses more than one write per second of one object.
const PACE_OF_GOOGLE: Duration = Duration::from_secs(1);

/// Where buckets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// Amazon S3, and stores that speak like it.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage, where a bucket is a container.
    Azure,
}

/// Which bucket has the locks and how it keeps them. What is not said here comes from the environment: `AWS_…`, `GOOGLE_…`, `AZURE_…`, and
/// the credentials of the machine.
///
/// ```no_run
/// use std::time::Duration;
///
/// use lock_core::ClientBuilder;
/// use lock_object_store::{ObjectStoreOptions, Provider};
///
/// # async fn run() -> Result<(), lock_core::LockError> {
/// let mut options = ObjectStoreOptions::at(Provider::S3, "my-bucket");
/// options.locks.lease = Duration::from_secs(60);
/// let locks = options.connect(ClientBuilder::new()).await?;
/// let guard = locks.mutex("nightly-report")?.acquire().await?;
/// guard.release().await
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ObjectStoreOptions {
    /// Where the bucket is.
    pub provider: Provider,
    /// The bucket, or the container.
    pub bucket: String,
    /// What the keys of all locks begin with, without a slash at the end: 1 to 200 bytes, `distlock` by default.
    pub prefix: String,
    /// The URL of a store that speaks like S3 or Azure.
    pub endpoint: Option<String>,
    /// The access key of S3, or the account of Azure.
    pub user: Option<String>,
    /// The secret access key of S3, or the key of the account of Azure. It appears in no output.
    pub password: Option<Password>,
    /// The lease, at least 5 s, and how often those who wait look: every 10 ms to 1 min.
    pub locks: RegisterOptions,
}

impl Default for ObjectStoreOptions {
    fn default() -> Self {
        Self::at(Provider::S3, "")
    }
}

impl ObjectStoreOptions {
    /// Locks in this bucket.
    pub fn at(provider: Provider, bucket: impl Into<String>) -> Self {
        Self {
            provider,
            bucket: bucket.into(),
            prefix: "distlock".to_owned(),
            endpoint: None,
            user: None,
            password: None,
            locks: RegisterOptions::default(),
        }
    }

    /// Connects to the store.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for options that do not fit together; [`ErrorKind::Unreachable`] and [`ErrorKind::Denied`] with
    /// the store's answer and what to do about it.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt to connect.
    ///
    /// [`ErrorKind::InvalidOption`]: lock_core::ErrorKind::InvalidOption
    /// [`ErrorKind::Unreachable`]: lock_core::ErrorKind::Unreachable
    /// [`ErrorKind::Denied`]: lock_core::ErrorKind::Denied
    pub async fn connect(mut self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.password = builder.own_password().cloned().or(self.password);
        self.check()?;
        builder.renewal_interval(self.locks.lease)?;
        let (builder, capabilities) = (builder.server(self.shown()), self.capabilities());
        connect_backend(builder, capabilities, move |context| Self::open(self.clone(), context)).await
    }

    fn capabilities(&self) -> Capabilities {
        let names = NameRules::new(CharacterSet::PORTABLE, 200);
        self.locks.capabilities("object-store", names, SHORTEST_LEASE).with_listing()
    }

    fn shown(&self) -> String {
        format!("{}://{}/{}", self.provider.scheme(), self.bucket, self.prefix)
    }

    async fn open(self, context: BackendContext) -> Result<RegisterBackend<Objects>, LockError> {
        let password = lock_kit::read_password(&context, self.password.as_ref(), PASSWORD_WITHIN).await?;
        let store = self.store(password.as_ref().map(lock_core::Secret::reveal)).map_err(unusable)?;
        let pace = if self.provider == Provider::Google { PACE_OF_GOOGLE } else { Duration::ZERO };
        let objects = Objects { store, prefix: self.prefix.clone(), pace };
        let backend = RegisterBackend::new(objects, context, self.locks.clone(), self.capabilities())?;
        backend.ping().await.map_err(|error| error.during(Operation::Connect))?;
        Ok(backend)
    }

    /// A client of the store that sends each request once.
    fn store(&self, password: Option<&str>) -> object_store::Result<Arc<dyn Store>> {
        // Has no effect if the program has chosen another. Without any, the client of the store would panic.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let allows_http = self.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http:"));
        match self.provider {
            Provider::S3 => {
                let mut builder =
                    AmazonS3Builder::from_env().with_bucket_name(&self.bucket).with_retry(retry);
                if let Some(endpoint) = &self.endpoint {
                    builder = builder.with_endpoint(endpoint).with_allow_http(allows_http);
                }
                if let (Some(user), Some(password)) = (&self.user, password) {
                    builder = builder.with_access_key_id(user).with_secret_access_key(password);
                }
                Ok(Arc::new(builder.build()?))
            }
            Provider::Google => {
                let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&self.bucket);
                Ok(Arc::new(builder.with_retry(retry).build()?))
            }
            Provider::Azure => {
                let mut builder =
                    MicrosoftAzureBuilder::from_env().with_container_name(&self.bucket).with_retry(retry);
                if let Some(endpoint) = &self.endpoint {
                    builder = builder.with_endpoint(endpoint.clone()).with_allow_http(allows_http);
                }
                if let Some(user) = &self.user {
                    builder = builder.with_account(user);
                }
                if let Some(password) = password {
                    builder = builder.with_access_key(password);
                }
                Ok(Arc::new(builder.build()?))
            }
        }
    }
}

impl Provider {
    fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }

    fn of(scheme: &str) -> Self {
        let known = [Self::Google, Self::Azure].into_iter().find(|provider| provider.scheme() == scheme);
        known.unwrap_or(Self::S3)
    }
}

impl BackendOptions for ObjectStoreOptions {
    fn of_url(url: &LockUrl) -> Result<Self, LockError> {
        let mut options = Self::at(Provider::of(url.scheme()), url.hosts());
        if options.bucket.is_empty() {
            return Err(invalid("the URL names no bucket").remedy("write for example s3://my-bucket/locks"));
        }
        let prefix = url.path().trim_matches('/');
        if !prefix.is_empty() {
            prefix.clone_into(&mut options.prefix);
        }
        options.user = url.user()?;
        options.password = url.password()?.map(Password::from);
        Ok(options)
    }

    fn visit(&mut self, options: &mut UrlOptions) -> Result<(), LockError> {
        options.duration("lease", &mut self.locks.lease, SHORTEST_LEASE..=LONGEST_LEASE)?;
        options.duration(
            "poll",
            &mut self.locks.poll,
            Duration::from_millis(10)..=Duration::from_secs(60),
        )?;
        self.endpoint = options.take("endpoint").or(self.endpoint.take());
        options.password_file("password_file", &mut self.password)?;
        if self.prefix.is_empty() || self.prefix.len() > LONGEST_PREFIX {
            return Err(invalid("the prefix is invalid")
                .remedy(format!("use 1 to {LONGEST_PREFIX} bytes behind the bucket: s3://my-bucket/locks")));
        }
        match self.provider {
            Provider::Google if self.user.is_some() || self.password.is_some() || self.endpoint.is_some() => {
                Err(invalid("Google Cloud Storage has neither a user nor a password nor an endpoint")
                    .remedy("name the file of a service account in GOOGLE_SERVICE_ACCOUNT"))
            }
            Provider::S3 if self.user.is_some() != self.password.is_some() => {
                Err(invalid("an access key and its secret belong together")
                    .remedy("write s3://KEY:SECRET@bucket, or neither"))
            }
            _ => Ok(()),
        }
    }

    fn lease(&self) -> Option<Duration> {
        Some(self.locks.lease)
    }

    async fn connect(self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.connect(builder).await
    }
}

/// Connects to the bucket that `url` names: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`.
/// `docs/backends/object-store.md` has the options.
///
/// # Errors
/// Those of [`lock_kit::connect`].
///
/// # Cancel safety
/// Dropping the future ends the attempt to connect.
pub async fn connect(url: &LockUrl, builder: ClientBuilder) -> Result<LockClient, LockError> {
    lock_kit::connect::<ObjectStoreOptions>(url, builder).await
}

/// What the facade knows of the object store backend.
pub static DRIVER: Driver = Driver::of::<ObjectStoreOptions>("object-store", &["s3", "gs", "az"])
    .summary("locks in a bucket of S3, Google Cloud Storage or Azure, without a server")
    .examples(&["s3://my-bucket/locks", "gs://my-bucket/locks?lease=1m&poll=1s", "az://my-container/locks"]);
