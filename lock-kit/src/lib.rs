//! What backends of [distlock](https://docs.rs/distlock) share about connections: URLs and their options, TLS, endpoints,
//! connecting for a while or at the first use, pools of connections; and the rules of a queue, for those that keep it
//! [themselves](Shares).
//!
//! `lock-core` knows nothing of it: it is about locks. A backend that has a URL or a connection depends on both. What the
//! facade knows of it is its [`Driver`].
#![forbid(unsafe_code)]

mod backend_options;
mod client_record;
mod connect;
mod connect_retry;
mod driver;
mod endpoint;
mod failure;
mod lazy;
mod password;
mod pool;
mod pooled_server;
mod server_options;
mod shared_backoff;
mod shares;
mod tls;
mod url;

pub use backend_options::{BackendOptions, connect, read};
pub use client_record::ClientRecord;
pub use connect::connect_backend;
pub use driver::{Connecting, Driver};
pub use endpoint::{Endpoint, split_port};
pub use failure::{gone, invalid, is_nearly_full, no_answer, unreachable};
pub use password::read_password;
pub use pool::{OwnLink, Pool};
pub use pooled_server::{PoolLimits, PooledLink, PooledServer};
pub use server_options::{LONGEST_LEASE, ServerOptions};
pub use shared_backoff::SharedBackoff;
pub use shares::{Asked, Removed, Shares};
pub use tls::{Authorities, ClientCertificate, TlsFiles, TlsOptions};
pub use url::{KnownOptions, LockUrl, UrlOptions, UsualParameter};
