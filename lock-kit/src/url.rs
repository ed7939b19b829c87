//! URLs that name a backend, and their options. Unknown options are errors.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use lock_core::{LockError, Password, Secret};
use percent_encoding::percent_decode_str;

use crate::endpoint::split_port;
use crate::failure::invalid;

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
/// assert_eq!(url.user()?.as_deref(), Some("admin"));
/// assert!(url.password()?.is_some() && url.has_secret());
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
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) when the URL has no scheme, a port is not a number, an option has no value or occurs
    /// twice, or an escape is not UTF-8. The error does not repeat the URL, which may contain a password.
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
        let is_port =
            |port: &str| port.parse::<u16>().is_ok() && (credentials.is_some() || !path.contains('@'));
        if hosts
            .unwrap_or_default()
            .split(',')
            .filter_map(|host| split_port(host).1)
            .any(|port| !is_port(port))
        {
            // The error quotes nothing, and there is no URL that could be shown: it may be the beginning of a password.
            return Err(invalid("the port is not a number, or an @ comes after it").remedy(
                "write host:port, an IPv6 address in brackets, %2F and %3F for / and ? in a password, %40 for @ in a path",
            ));
        }
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
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) when an escape is not UTF-8.
    pub fn user(&self) -> Result<Option<String>, LockError> {
        let user =
            self.credentials.as_deref().map(|text| text.split_once(':').map_or(text, |(user, _)| user));
        user.filter(|user| !user.is_empty()).map(decode).transpose()
    }

    /// Returns the password, if there is one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) when an escape is not UTF-8.
    pub fn password(&self) -> Result<Option<Secret>, LockError> {
        let password = self.credentials.as_deref().and_then(|text| text.split_once(':'));
        let password = password.map(|(_, password)| password).filter(|password| !password.is_empty());
        Ok(password.map(decode).transpose()?.map(Secret::new))
    }

    /// Returns the database that the path names, if it names one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) for a path of several parts.
    pub fn database(&self) -> Result<Option<&str>, LockError> {
        match self.path.trim_start_matches('/') {
            "" => Ok(None),
            // The error does not quote it: after a slash in a password that is not encoded, it is the rest of the password.
            name if name.contains('/') => Err(invalid("the database contains a slash")
                .remedy("write user@host/database, and %2F for a slash in a password")),
            name => Ok(Some(name)),
        }
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
/// An option with a place has there its default before, and its value after; the limits apply to both. So the same code
/// [reads](crate::BackendOptions::visit) a URL, checks what a program has set, and says which options there are.
///
/// ```
/// use std::time::Duration;
///
/// use lock_kit::LockUrl;
///
/// let mut options = LockUrl::parse("server://cache?lease=30s&tls=on&prefix=billing")?.options();
/// let (mut lease, mut retries) = (Duration::from_secs(10), 3);
/// options.duration("lease", &mut lease, Duration::from_secs(1)..=Duration::from_secs(3600))?;
/// options.number("retries", &mut retries, 1..=9)?;
/// assert_eq!((lease, retries), (Duration::from_secs(30), 3));
/// assert_eq!(options.take_choice("tls", &[("on", true), ("off", false)])?, Some(true));
/// assert_eq!(options.take("prefix").as_deref(), Some("billing"));
/// assert_eq!(options.known()["lease"].as_deref(), Some("10s")); // the default
/// options.finish()?; // refuses what is left
/// # Ok::<(), lock_core::LockError>(())
/// ```
#[derive(Clone, Default)]
pub struct UrlOptions {
    pairs: Vec<(String, String)>,
    known: KnownOptions,
}

/// The options of a backend's URLs: the name of each, and what applies without it, in words; `None` if nothing does.
pub type KnownOptions = BTreeMap<&'static str, Option<String>>;

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
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) for one that means nothing here, naming the option to use instead.
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
    pub fn take(&mut self, name: &'static str) -> Option<String> {
        self.known.entry(name).or_default();
        let position = self.pairs.iter().position(|(other, _)| other == name)?;
        Some(self.pairs.remove(position).1)
    }

    /// Takes a duration out: `500ms`, `30s`, `5m`, `1h 30m`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption), naming the option.
    pub fn take_duration(&mut self, name: &'static str) -> Result<Option<Duration>, LockError> {
        let Some(text) = self.take(name) else { return Ok(None) };
        humantime::parse_duration(&text).map(Some).map_err(|error| {
            invalid(format!("the option {name:?} is not a length of time: {error}"))
                .remedy("write for example 500ms or 30s")
        })
    }

    /// Takes an option out whose value is one of several words.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption), naming the option and the words.
    pub fn take_choice<T: Copy>(
        &mut self,
        name: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, LockError> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let choice = choices.iter().find(|(word, _)| *word == text).map(|(_, choice)| *choice);
        let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
        choice
            .map(Some)
            .ok_or_else(|| invalid(format!("the option {name:?} is not one of {}", words.join(", "))))
    }

    /// Takes a text into its place.
    pub fn text(&mut self, name: &'static str, place: &mut String) {
        self.note_default(name, place.as_str());
        if let Some(text) = self.take(name) {
            *place = text;
        }
    }

    /// Takes a duration into its place.
    ///
    /// # Errors
    /// Those of [`UrlOptions::take_duration`]; [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) if the
    /// place then has what is not within the limits.
    pub fn duration(
        &mut self,
        name: &'static str,
        place: &mut Duration,
        limits: RangeInclusive<Duration>,
    ) -> Result<(), LockError> {
        self.note_default(name, humantime::format_duration(*place));
        *place = self.take_duration(name)?.unwrap_or(*place);
        check(name, *place, limits, humantime::format_duration)
    }

    /// Takes a duration into its place, without which applies what `default` says.
    ///
    /// # Errors
    /// Same as [`UrlOptions::duration`].
    pub fn optional_duration(
        &mut self,
        name: &'static str,
        place: &mut Option<Duration>,
        limits: RangeInclusive<Duration>,
        default: &str,
    ) -> Result<(), LockError> {
        self.note_default(name, default);
        *place = self.take_duration(name)?.or(*place);
        place.map_or(Ok(()), |value| check(name, value, limits, humantime::format_duration))
    }

    /// Takes a whole number into its place.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption), naming the option, if it is not a number, or the
    /// place then has what is not within the limits.
    pub fn number<T: FromStr + PartialOrd + Display + Copy>(
        &mut self,
        name: &'static str,
        place: &mut T,
        limits: RangeInclusive<T>,
    ) -> Result<(), LockError> {
        self.note_default(name, *place);
        if let Some(text) = self.take(name) {
            // The error does not quote it, which may be the rest of a password that is not encoded.
            *place = text.parse().map_err(|_| invalid(format!("the option {name:?} is not a number")))?;
        }
        check(name, *place, limits, |number| number)
    }

    /// Takes one of several words into its place, as what it stands for.
    ///
    /// # Errors
    /// Same as [`UrlOptions::take_choice`].
    pub fn choice<T: Copy + PartialEq>(
        &mut self,
        name: &'static str,
        place: &mut T,
        choices: &[(&str, T)],
    ) -> Result<(), LockError> {
        if let Some((word, _)) = choices.iter().find(|(_, choice)| choice == place) {
            self.note_default(name, word);
        }
        *place = self.take_choice(name, choices)?.unwrap_or(*place);
        Ok(())
    }

    /// Takes the name of a file with a password into its place.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) if there is a password already, and the errors of
    /// [`Password::of_file`].
    pub fn password_file(
        &mut self,
        name: &'static str,
        place: &mut Option<Password>,
    ) -> Result<(), LockError> {
        let Some(file) = self.take(name) else { return Ok(()) };
        if place.is_some() {
            return Err(invalid(format!("there are a password and a {name}")).remedy("leave one of them out"));
        }
        *place = Some(Password::of_file(file)?);
        Ok(())
    }

    pub(crate) fn leave_out_passwords(&mut self) {
        self.pairs.retain(|(name, _)| !name.ends_with("password_file"));
    }

    /// Notes what applies without an option.
    pub(crate) fn note_default(&mut self, name: &'static str, default: impl Display) {
        self.known.insert(name, Some(default.to_string()).filter(|default| !default.is_empty()));
    }

    /// Returns the options that were asked for, whether or not the URL has them.
    pub fn known(&self) -> &KnownOptions {
        &self.known
    }

    /// Refuses options that were not taken out.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption), naming the first unknown option and the known
    /// options.
    pub fn finish(self) -> Result<(), LockError> {
        let Some((name, _)) = self.pairs.first() else { return Ok(()) };
        let known: Vec<_> = self.known.into_keys().collect();
        Err(invalid(format!("there is no option {name:?}"))
            .remedy(format!("the options are: {}", known.join(", "))))
    }
}

/// Refuses a value that is not within the limits.
fn check<T: PartialOrd + Copy, S: Display>(
    name: &str,
    value: T,
    limits: RangeInclusive<T>,
    shown: impl Fn(T) -> S,
) -> Result<(), LockError> {
    let remedy = match limits.into_inner() {
        (least, _) if value < least => format!("make it at least {}", shown(least)),
        (_, most) if value > most => format!("make it at most {}", shown(most)),
        _ => return Ok(()),
    };
    Err(invalid(format!("the option {name:?} is {}", shown(value))).remedy(remedy))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_several_hosts_and_escapes() {
        let url = LockUrl::parse("zookeeper://u%40x:p%3Aq@h1:2181,h2:2181/lo%20cks?label=a%26b&max_hold=5m")
            .unwrap();
        assert_eq!((url.scheme(), url.hosts(), url.path()), ("zookeeper", "h1:2181,h2:2181", "/lo cks"));
        assert_eq!(url.user().unwrap().as_deref(), Some("u@x"));
        assert_eq!(url.password().unwrap().unwrap().reveal(), "p:q");
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
        // Of a password that is not encoded, the beginning looks like a port.
        for rest in ["hunt/er2@cache/0", "hunt?er2=1@cache/0", "1/er2@cache/0", "hunt,er2/@cache"] {
            let shown = LockUrl::parse(&format!("redis://admin:{rest}")).unwrap_err().to_string();
            assert!(
                shown.contains("not a number") && !shown.contains("hunt") && !shown.contains("er2"),
                "{shown}"
            );
        }
    }
}
