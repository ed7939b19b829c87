//! The description of an option of a URL.

/// An option of a backend's URL, as help texts and the documentation show it.
///
/// ```
/// use lock_kit::{OptionKind, UrlOption};
///
/// const OPTIONS: &[UrlOption] = &[
///     UrlOption::duration("lease", "how long the server keeps a silent holder's lock").default_value("30 s"),
///     UrlOption::number("max_connections", "how many connections there are at most").default_value("100"),
///     UrlOption::text("prefix", "what names begin with"),
///     UrlOption::file("password_file", "a file that contains the password"),
///     UrlOption::choice("tls", &["on", "off"], "whether connections are encrypted").default_value("off"),
/// ];
/// assert_eq!((OPTIONS[0].kind, OPTIONS[0].default), (OptionKind::Duration, Some("30 s")));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UrlOption {
    /// Its name in the URL.
    pub name: &'static str,
    /// What its value is.
    pub kind: OptionKind,
    /// What applies without it, in words; `None` if nothing does.
    pub default: Option<&'static str>,
    /// What it means, in one line without a full stop.
    pub meaning: &'static str,
}

/// What the value of a [`UrlOption`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionKind {
    /// A length of time with its unit: `500ms`, `30s`, `5m`.
    Duration,
    /// A whole number.
    Number,
    /// Any text.
    Text,
    /// The path of a file.
    File,
    /// One of these words.
    Choice(&'static [&'static str]),
}

impl UrlOption {
    /// The options that all backends have: [`UrlOptions::configure`](crate::UrlOptions::configure) reads them.
    pub const COMMON: &'static [Self] = &[
        Self::choice("engine", &["own", "caller"], "where the client's work runs").default_value("own"),
        Self::duration("abort_margin", "how long a holder needs to stop after it learns of a loss")
            .default_value("0"),
        Self::duration("max_hold", "how long a lock may be held at most"),
        Self::text(
            "local_handoff",
            "how many tasks may pass a lock on without the server, and for how long: 100/10ms",
        ),
        Self::duration("connect_timeout", "how long to try to connect to a server that is not there yet")
            .default_value("10 s"),
        Self::choice("connect", &["eager", "lazy"], "when the client connects").default_value("eager"),
        Self::text("label", "what status shows beside host and pid"),
    ];

    const fn new(name: &'static str, kind: OptionKind, meaning: &'static str) -> Self {
        Self { name, kind, default: None, meaning }
    }

    /// Describes an option whose value is a length of time.
    pub const fn duration(name: &'static str, meaning: &'static str) -> Self {
        Self::new(name, OptionKind::Duration, meaning)
    }

    /// Describes an option whose value is a whole number.
    pub const fn number(name: &'static str, meaning: &'static str) -> Self {
        Self::new(name, OptionKind::Number, meaning)
    }

    /// Describes an option whose value is any text.
    pub const fn text(name: &'static str, meaning: &'static str) -> Self {
        Self::new(name, OptionKind::Text, meaning)
    }

    /// Describes an option whose value is the path of a file.
    pub const fn file(name: &'static str, meaning: &'static str) -> Self {
        Self::new(name, OptionKind::File, meaning)
    }

    /// Describes an option whose value is one of several words.
    pub const fn choice(name: &'static str, words: &'static [&'static str], meaning: &'static str) -> Self {
        Self::new(name, OptionKind::Choice(words), meaning)
    }

    /// Sets what applies without the option, in words.
    #[must_use]
    pub const fn default_value(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }
}
