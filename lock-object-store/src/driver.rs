//! What the facade knows of this backend.

use lock_kit::Driver;

use crate::options::ObjectStoreOptions;

/// What the facade knows of the object store backend.
pub static DRIVER: Driver = Driver::of::<ObjectStoreOptions>("object-store", &["s3", "gs", "az"])
    .summary("locks in a bucket of S3, Google Cloud Storage or Azure, without a server")
    .examples(&["s3://my-bucket/locks", "gs://my-bucket/locks?lease=1m&poll=1s", "az://my-container/locks"]);
