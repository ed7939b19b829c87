//! File.
