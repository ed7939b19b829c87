//! The MySQL and MariaDB backend of distlock.
