//! Cases that run on a server of one flavour.

pub use conformance_tests::faults::case::ensure;

/// Lists the cases of a module.
macro_rules! cases {
    ($($list:tt)*) => {
        ::conformance_tests::faults::case::cases!(on ::test_servers::MySqlFlavour, $($list)*);
    };
}

pub(crate) use cases;
