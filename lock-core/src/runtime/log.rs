//! Records of the log. A subscriber is foreign code, and what is logged here happens while something is still to be done, such as
//! the release of a lock.

/// Logs at a level of `tracing`.
macro_rules! log {
    ($level:ident, $($record:tt)*) => {{
        $crate::runtime::waker::catch_panic(|| tracing::$level!(target: "distlock", $($record)*));
    }};
}

pub(crate) use log;
