//! What backends of [distlock](https://docs.rs/distlock) share about connections: URLs and their options, TLS, endpoints,
//! connecting for a while or at the first use, pools of connections.
//!
//! `lock-core` knows nothing of it: it is about locks. A backend that has a URL or a connection depends on both. What the
//! facade knows of it is its [`Driver`].
#![forbid(unsafe_code)]

mod connect;
mod connect_retry;
mod driver;
mod endpoint;
mod lazy;
mod option;
mod pool;
mod pooled_server;
mod shared_backoff;
mod tls;
mod url;

pub use connect::connect_backend;
pub use driver::{Connecting, Driver};
pub use endpoint::{Endpoint, split_port};
pub use option::{OptionKind, UrlOption};
pub use pool::{OwnLink, Pool};
pub use pooled_server::{PoolLimits, PooledLink, PooledServer};
pub use shared_backoff::SharedBackoff;
pub use tls::{ClientCertificate, TlsFiles, TlsOptions};
pub use url::{LockUrl, UrlOptions, UsualParameter};
