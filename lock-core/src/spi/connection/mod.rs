//! How a client reaches its server: options that mean the same for every backend that has them.

mod endpoint;
mod tls;

pub use endpoint::{Endpoint, split_port};
pub use tls::{ClientCertificate, TlsFiles, TlsOptions};
