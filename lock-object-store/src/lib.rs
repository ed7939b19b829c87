//! The object store backend of distlock: locks in a bucket of S3, Google Cloud Storage or Azure. There is no server beside the bucket.
//!
//! [`connect`] makes a [`LockClient`](lock_core::LockClient) from a URL (`s3:`, `gs:`, `az:`); [`ObjectStoreOptions`] makes one without
//! a URL. `docs/backends/object-store.md` describes the promises and their limits, the options, the permissions and the costs.
//!
//! # How it holds the lock
//! Each lock is one object, which has holders and waiters: [`lock_register`] has the protocol. A write says which content it
//! replaces, and the store refuses it if there is another: `If-Match` and `If-None-Match` at S3 and Azure, the generation at Google.
//!
//! # How a holder learns of a loss
//! From its next renewal, or from the core before its lease is over: see [`lock_register`].
//!
//! # What happens at each failure
//! * *A request is not answered.* **None is sent twice**: what has an outcome that is not known, the protocol makes certain.
//! * *The store refuses for lack of a permission.* The error says so; the client goes on when it has the permission again.
//! * *The bucket does not exist.* Reading cannot tell that from an object that does not exist. The first acquisition says so.
//! * *The store is not linearizable*, or checks a condition and writes in two steps: then it does not exclude.
#![forbid(unsafe_code)]

mod objects;
mod options;

pub use options::{DRIVER, ObjectStoreOptions, Provider, connect};
