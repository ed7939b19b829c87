//! URLs that name a backend, and their options. Unknown options are errors.

use std::fmt;
use std::time::Duration;

use lock_core::{ErrorKind, LockError, Operation, Password, Secret};
use percent_encoding::percent_decode_str;

/// A URL that names a backend: `scheme:[//authority][path][?key=value&…]`.
///
/// The authority may contain several hosts, separated by commas. Neither `Display` nor `Debug` shows the user, the
/// password or the options: only scheme, hosts and path.
///
/// ```
/// use lock_kit::LockUrl;
///
/// let url = LockUrl::parse("server://admin:secret@cache:6379/0?lease=30s")?;
/// assert_eq!(url.scheme(), "server");
/// assert_eq!(url.hosts(), "cache:6379");
/// assert_eq!(url.path(), "/0");
/// assert_eq!((url.user()?.as_deref(), url.password()?.as_deref()), (Some("admin"), Some("secret")));
/// assert!(url.has_secret());
/// assert_eq!(url.to_string(), "server://cache:6379/0");
/// # Ok::<(), lock_core::LockError>(())
/// ```
#[derive(Clone)]
pub struct LockUrl {
    scheme: String,
    credentials: Option<String>,
    hosts: Option<String>,
    path: String,
    options: UrlOptions,
}

impl LockUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] when the URL has no scheme, an option has no value or occurs twice, or an escape is
    /// not UTF-8. The error does not repeat the URL, which may contain a password.
    pub fn parse(text: &str) -> Result<Self, LockError> {
        let (scheme, rest) = text
            .split_once(':')
            .filter(|(scheme, _)| is_scheme(scheme))
            .ok_or_else(|| invalid("the URL has no scheme").remedy("write for example file:/some/folder"))?;
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                (Some(authority), path)
            }
            None => (None, rest),
        };
        let (credentials, hosts) =
            match authority.map(|authority| authority.rsplit_once('@').ok_or(authority)) {
                Some(Ok((credentials, hosts))) => (Some(credentials), Some(hosts)),
                Some(Err(hosts)) => (None, Some(hosts)),
                None => (None, None),
            };
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            credentials: credentials.map(str::to_owned),
            hosts: hosts.map(str::to_owned),
            path: decode(path)?,
            options: UrlOptions::parse(query.unwrap_or_default())?,
        })
    }

    /// Returns the part before the colon, in lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns the hosts with their ports, as written; empty if there are none.
    pub fn hosts(&self) -> &str {
        self.hosts.as_deref().unwrap_or_default()
    }

    /// Returns the path, with its escapes decoded; empty if there is none.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the user, if there is one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] when an escape is not UTF-8.
    pub fn user(&self) -> Result<Option<String>, LockError> {
        let user =
            self.credentials.as_deref().map(|text| text.split_once(':').map_or(text, |(user, _)| user));
        user.filter(|user| !user.is_empty()).map(decode).transpose()
    }

    /// Returns the password, if there is one. It must not get into an error, a log or a `Debug` text.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] when an escape is not UTF-8.
    pub fn password(&self) -> Result<Option<String>, LockError> {
        let password = self.credentials.as_deref().and_then(|text| text.split_once(':'));
        password.map(|(_, password)| decode(password)).transpose()
    }

    /// Returns the password of the URL, or the one in the file that the option `password_file` names.
    ///
    /// ```
    /// use lock_kit::LockUrl;
    ///
    /// let url = LockUrl::parse("server://admin:hunter2@cache?lease=30s")?;
    /// let mut options = url.options();
    /// let password = url.secret(&mut options)?; // or from the file that `password_file` names
    /// assert!(!format!("{password:?}").contains("hunter2"));
    /// # Ok::<(), lock_core::LockError>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] when both are given; and the errors of [`Password::of_file`].
    pub fn secret(&self, options: &mut UrlOptions) -> Result<Option<Password>, LockError> {
        let written = self.password()?.filter(|text| !text.is_empty()).map(|text| Secret::new(text).into());
        let Some(file) = options.take("password_file") else { return Ok(written) };
        if written.is_some() {
            return Err(invalid("there are a password and a password_file").remedy("leave one of them out"));
        }
        Password::of_file(file).map(Some)
    }

    /// Returns whether the URL contains something that others must not see: credentials, or an option that could be a
    /// secret.
    pub fn has_secret(&self) -> bool {
        self.credentials.is_some()
            || self.options.pairs.iter().any(|(key, _)| {
                ["password", "secret", "token", "key", "auth"].iter().any(|part| key.contains(part))
            })
    }

    /// Returns the options. Take them out one by one and then call [`finish`](UrlOptions::finish).
    pub fn options(&self) -> UrlOptions {
        self.options.clone()
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text
            .chars()
            .all(|character| character.is_ascii_alphanumeric() || matches!(character, '+' | '-' | '.'))
}

impl fmt::Display for LockUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:", self.scheme)?;
        let Some(hosts) = &self.hosts else { return formatter.write_str(&self.path) };
        if self.path.contains('@') {
            // A path with an `@` is probably the rest of a password that contains an unescaped slash.
            return formatter.write_str("//(hidden)");
        }
        write!(formatter, "//{hosts}{}", self.path)
    }
}

impl fmt::Debug for LockUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "LockUrl({self})")
    }
}

/// The options of a URL. Each part of the program takes out the options that it knows; [`UrlOptions::finish`] refuses
/// the rest.
///
/// ```
/// use std::time::Duration;
///
/// use lock_kit::LockUrl;
///
/// let mut options = LockUrl::parse("server://cache?lease=30s&tls=on&prefix=billing")?.options();
/// assert_eq!(options.take_duration("lease")?, Some(Duration::from_secs(30)));
/// assert_eq!(options.take_choice("tls", &[("on", true), ("off", false)])?, Some(true));
/// assert_eq!(options.take("prefix").as_deref(), Some("billing"));
/// options.finish()?; // refuses what is left
/// # Ok::<(), lock_core::LockError>(())
/// ```
#[derive(Clone, Default)]
pub struct UrlOptions {
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
}

/// A parameter that URLs of the server's other clients have, in terms of our options.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum UsualParameter {
    /// Another name of one of our options.
    Name(&'static str, &'static str),
    /// One of our options, in seconds if the value has no unit.
    Seconds(&'static str),
    /// Whether connections are encrypted: the name, the words for `tls=off`, and those for `tls=on`. Any other word would
    /// fall back to plain text, which distlock never does, and is an error. Upper and lower case are the same.
    Tls(&'static str, &'static [&'static str], &'static [&'static str]),
    /// A parameter that is refused, and what to do instead.
    Instead(&'static str, &'static str),
}

impl UrlOptions {
    /// Reads the usual parameters of a server's URLs as the options that they stand for.
    ///
    /// ```
    /// use lock_kit::LockUrl;
    /// use lock_kit::UsualParameter;
    ///
    /// let mut options = LockUrl::parse("servers://db?sslmode=require&connect_timeout=10")?.options();
    /// options.understand(&[
    ///     UsualParameter::Tls("sslmode", &["disable"], &["require"]),
    ///     UsualParameter::Seconds("connect_timeout"),
    /// ])?;
    /// assert_eq!(options.take("tls").as_deref(), Some("on"));
    /// assert_eq!(options.take("connect_timeout").as_deref(), Some("10s"));
    /// # Ok::<(), lock_core::LockError>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for one that means nothing here, naming the option to use instead.
    pub fn understand(&mut self, usual: &[UsualParameter]) -> Result<(), LockError> {
        for parameter in usual {
            let (UsualParameter::Name(theirs, _)
            | UsualParameter::Seconds(theirs)
            | UsualParameter::Tls(theirs, ..)
            | UsualParameter::Instead(theirs, _)) = *parameter;
            let Some(position) = self.pairs.iter().position(|(key, _)| key == theirs) else { continue };
            let (_, value) = self.pairs.remove(position);
            let (ours, value) = parameter.in_our_words(value)?;
            if self.pairs.iter().any(|(key, _)| key == ours) {
                return Err(invalid(format!("the options {theirs:?} and {ours:?} are the same"))
                    .remedy("leave one of them out"));
            }
            self.pairs.push((ours.to_owned(), value));
        }
        Ok(())
    }

    fn parse(query: &str) -> Result<Self, LockError> {
        let mut options = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| {
                // The error does not name the option: it may be the rest of a password that contains an unescaped
                // question mark.
                invalid("an option has no value")
                    .remedy("write key=value, and %3F for a question mark in a password")
            })?;
            let key = decode(key)?;
            if options.pairs.iter().any(|(other, _)| *other == key) {
                return Err(invalid(format!("the option {key:?} is given twice")));
            }
            options.pairs.push((key, decode(value)?));
        }
        Ok(options)
    }

    /// Takes an option out, as text.
    pub fn take(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        let position = self.pairs.iter().position(|(other, _)| other == key)?;
        Some(self.pairs.remove(position).1)
    }

    /// Takes a duration out: `500ms`, `30s`, `5m`, `1h 30m`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`], naming the option.
    pub fn take_duration(&mut self, key: &'static str) -> Result<Option<Duration>, LockError> {
        let Some(text) = self.take(key) else {
            return Ok(None);
        };
        humantime::parse_duration(&text).map(Some).map_err(|error| {
            invalid(format!("the option {key:?} is not a length of time: {error}"))
                .remedy("write for example 500ms or 30s")
        })
    }

    /// Takes an option out whose value is one of several words.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`], naming the option and the words.
    pub fn take_choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, LockError> {
        let Some(text) = self.take(key) else {
            return Ok(None);
        };
        let choice = choices.iter().find(|(word, _)| *word == text).map(|(_, choice)| *choice);
        let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
        choice
            .map(Some)
            .ok_or_else(|| invalid(format!("the option {key:?} is not one of {}", words.join(", "))))
    }

    /// Refuses options that were not taken out.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`], naming the first unknown option and the known options.
    pub fn finish(mut self) -> Result<(), LockError> {
        self.known.sort_unstable();
        match self.pairs.first() {
            None => Ok(()),
            Some((key, _)) => {
                let known = if self.known.is_empty() { "none".to_owned() } else { self.known.join(", ") };
                Err(invalid(format!("there is no option {key:?}"))
                    .remedy(format!("the options are: {known}")))
            }
        }
    }
}

impl UsualParameter {
    /// Returns the option that this parameter stands for, and its value.
    fn in_our_words(self, value: String) -> Result<(&'static str, String), LockError> {
        match self {
            Self::Name(_, ours) => Ok((ours, value)),
            Self::Seconds(ours) => {
                let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
                Ok((ours, if is_number { value + "s" } else { value }))
            }
            Self::Tls(theirs, off, on) => {
                let is_one_of = |words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(&value));
                if is_one_of(off) || is_one_of(on) {
                    return Ok(("tls", if is_one_of(on) { "on" } else { "off" }.to_owned()));
                }
                Err(invalid(format!(
                    "the option {theirs:?} is none of {}, and nothing else can be promised",
                    [off, on].concat().join(", ")
                ))
                .remedy("write tls=on, which verifies the server, or tls=off: the client never falls back to plain text"))
            }
            Self::Instead(theirs, remedy) => {
                Err(invalid(format!("there is no option {theirs:?}")).remedy(remedy))
            }
        }
    }
}

impl fmt::Debug for UrlOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.pairs.iter().map(|(key, _)| key)).finish()
    }
}

fn decode(text: &str) -> Result<String, LockError> {
    percent_decode_str(text)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| invalid("an escape (%…) in the URL is not UTF-8"))
}

fn invalid(cause: impl Into<std::borrow::Cow<'static, str>>) -> LockError {
    LockError::new(ErrorKind::InvalidOption, Operation::Configure).because(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_several_hosts_and_escapes() {
        let url = LockUrl::parse("zookeeper://u%40x:p%3Aq@h1:2181,h2:2181/lo%20cks?label=a%26b&max_hold=5m")
            .unwrap();
        assert_eq!((url.scheme(), url.hosts(), url.path()), ("zookeeper", "h1:2181,h2:2181", "/lo cks"));
        assert_eq!(url.user().unwrap().as_deref(), Some("u@x"));
        assert_eq!(url.password().unwrap().as_deref(), Some("p:q"));
        let mut options = url.options();
        assert_eq!(options.take("label").as_deref(), Some("a&b"));
        assert_eq!(options.take_duration("max_hold").unwrap(), Some(Duration::from_secs(300)));
        options.finish().unwrap();
    }

    #[test]
    fn reads_paths_without_an_authority() {
        assert_eq!(LockUrl::parse("file:/var/lock").unwrap().path(), "/var/lock");
        assert_eq!(LockUrl::parse("file:///var/lock").unwrap().path(), "/var/lock");
        assert_eq!(LockUrl::parse("memory:").unwrap().path(), "");
    }

    #[test]
    fn refuses_what_it_does_not_understand_and_names_it() {
        for (url, part) in [
            ("nonsense", "no scheme"),
            ("://host", "no scheme"),
            ("memory:?lease", "no value"),
            ("memory:?a=1&a=2", "twice"),
            ("memory:%ff", "UTF-8"),
        ] {
            let text = LockUrl::parse(url).unwrap_err().to_string();
            assert!(text.contains(part), "{url}: {text}");
        }
        let mut options = LockUrl::parse("memory:?lesae=30s&lease=soon").unwrap().options();
        let text = options.take_duration("lease").unwrap_err().to_string();
        assert!(text.contains("lease") && text.contains("30s"), "{text}");
        let text = options.finish().unwrap_err().to_string();
        assert!(text.contains("lesae") && text.contains("lease"), "{text}");
    }

    #[test]
    fn shows_no_secret() {
        let url = LockUrl::parse("redis://admin:hunter2@cache/0?auth_token=hunter2").unwrap();
        let shown = format!("{url} {url:?} {:?}", url.options());
        assert!(!shown.contains("hunter2") && !shown.contains("admin"), "{shown}");
        assert!(url.has_secret());
        let shown = LockUrl::parse("redis://admin:hunt/er2@cache/0").unwrap().to_string();
        assert!(!shown.contains("hunt") && !shown.contains("er2"), "{shown}");
    }
}
