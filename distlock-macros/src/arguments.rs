//! What stands in the brackets of the attribute.

use std::time::Duration;

use proc_macro2::Span;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Error, Expr, Ident, Lit, LitStr, Result, Token};

use crate::name::Name;

const OPTIONS: &str = "client, lock, wait, on_busy, hold and mode";

pub(crate) struct Arguments {
    pub(crate) source: Source,
    pub(crate) wait: Option<Duration>,
    pub(crate) on_busy: OnBusy,
    pub(crate) hold: Option<Ident>,
}

/// Where the lock comes from.
pub(crate) enum Source {
    Client {
        client: Expr,
        /// Without a name, the path of the function is the name.
        name: Option<Name>,
        mode: Mode,
    },
    Lock(Expr),
}

/// Which holders exclude each other.
#[derive(Clone, Copy, Default)]
pub(crate) enum Mode {
    #[default]
    Exclusive,
    Read,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnBusy {
    Error,
    Skip,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut written = Written::default();
        if input.peek(Lit) {
            written.name = Some(name(input)?);
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        while !input.is_empty() {
            written.option(input)?;
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        written.checked()
    }
}

fn name(input: ParseStream<'_>) -> Result<LitStr> {
    match input.parse()? {
        Lit::Str(name) => Ok(name),
        other => Err(Error::new(other.span(), "the name of a lock is a string, such as \"orders/{id}\"")),
    }
}

/// The arguments as they are written, each at most once.
#[derive(Default)]
struct Written {
    name: Option<LitStr>,
    client: Option<Expr>,
    lock: Option<(Ident, Expr)>,
    wait: Option<Duration>,
    on_busy: Option<(Ident, OnBusy)>,
    hold: Option<Ident>,
    mode: Option<(Ident, Mode)>,
}

impl Written {
    fn option(&mut self, input: ParseStream<'_>) -> Result<()> {
        let key: Ident = input
            .parse()
            .map_err(|error| Error::new(error.span(), format!("expected an option: {OPTIONS}")))?;
        input.parse::<Token![=]>()?;
        match key.to_string().as_str() {
            "client" => set(&mut self.client, &key, input.parse()?),
            "lock" => set(&mut self.lock, &key, (key.clone(), input.parse()?)),
            "wait" => set(&mut self.wait, &key, duration(input)?),
            "on_busy" => set(&mut self.on_busy, &key, (key.clone(), on_busy(&input.parse()?)?)),
            "hold" => set(&mut self.hold, &key, input.parse()?),
            "mode" => set(&mut self.mode, &key, (key.clone(), mode(&input.parse()?)?)),
            _ => {
                Err(Error::new(key.span(), format!("there is no option `{key}`; the options are {OPTIONS}")))
            }
        }
    }

    fn checked(self) -> Result<Arguments> {
        let source = match (self.client, self.lock, self.name) {
            (Some(client), None, name) => {
                let mode = self.mode.map(|(_, mode)| mode).unwrap_or_default();
                Source::Client { client, name: name.as_ref().map(Name::parse).transpose()?, mode }
            }
            (None, Some((_, lock)), None) => match self.mode {
                None => Source::Lock(lock),
                Some((key, _)) => {
                    return Err(Error::new(
                        key.span(),
                        "`lock` is a side of a lock already: leave `mode` out",
                    ));
                }
            },
            (None, None, _) => {
                return Err(Error::new(
                    Span::call_site(),
                    "where does the lock come from? Write `client = …`, or `lock = …` for one that you have",
                ));
            }
            (Some(_), Some((key, _)), _) => {
                return Err(Error::new(key.span(), "`lock` is a lock already: leave `client` or `lock` out"));
            }
            (None, Some(_), Some(name)) => {
                return Err(Error::new(name.span(), "`lock` has a name already: leave this one out"));
            }
        };
        let on_busy = match self.on_busy {
            Some((key, OnBusy::Skip)) if self.wait.is_none() => {
                return Err(Error::new(
                    key.span(),
                    "without `wait` the function waits for ever and never skips: add `wait`, `wait = \"0s\"` to try once",
                ));
            }
            on_busy => on_busy.map_or(OnBusy::Error, |(_, on_busy)| on_busy),
        };
        Ok(Arguments { source, wait: self.wait, on_busy, hold: self.hold })
    }
}

fn set<T>(slot: &mut Option<T>, key: &Ident, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::new(key.span(), format!("`{key}` is given twice"))),
    }
}

/// Reads a length of time in the syntax of URL options.
fn duration(input: ParseStream<'_>) -> Result<Duration> {
    let value: Expr = input.parse()?;
    let Expr::Lit(syn::ExprLit { lit: Lit::Str(text), .. }) = &value else {
        return Err(Error::new(
            value.span(),
            "a length of time is a string with its unit, such as \"500ms\" or \"30s\"",
        ));
    };
    humantime::parse_duration(&text.value()).map_err(|error| {
        Error::new(
            text.span(),
            format!("not a length of time: {error}; write for example \"500ms\" or \"30s\""),
        )
    })
}

fn on_busy(word: &Ident) -> Result<OnBusy> {
    match word.to_string().as_str() {
        "error" => Ok(OnBusy::Error),
        "skip" => Ok(OnBusy::Skip),
        _ => Err(Error::new(word.span(), "`on_busy` is `error` or `skip`")),
    }
}

fn mode(word: &Ident) -> Result<Mode> {
    match word.to_string().as_str() {
        // The write side of a read-write lock is the mutex of its name.
        "exclusive" | "write" => Ok(Mode::Exclusive),
        "read" => Ok(Mode::Read),
        _ => Err(Error::new(word.span(), "`mode` is `exclusive`, `read` or `write`")),
    }
}
