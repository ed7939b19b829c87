//! The Redis backend of distlock.
#![forbid(unsafe_code)]
