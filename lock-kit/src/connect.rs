//! How a client connects: with the options of a URL, for a while, or at its first use.

use std::future::Future;
use std::time::Duration;

use lock_core::{
    Backend, BackendContext, Capabilities, ClientBuilder, ConnectMode, EngineChoice, LockClient, LockError,
};

use crate::connect_retry::ConnectRetry;
use crate::failure::invalid;
use crate::lazy::Lazy;
use crate::url::UrlOptions;

/// How long a client tries to connect, if neither the program nor the URL says so.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Builds a client from a backend that connects, on the client's engine. `make` makes one attempt: it is called
/// again while its error is [retryable](LockError::is_retryable), for as long as the
/// [timeout](ClientBuilder::connect_timeout) lasts. It is called first when the client is used, if the
/// [mode](ClientBuilder::connect_mode) says so; until then `capabilities` are those of the backend.
///
/// # Errors
/// Any error of `make`, with the time that was spent on it; [`ErrorKind::Unreachable`](lock_core::ErrorKind::Unreachable) when `make` takes too long;
/// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) when the engine is the caller's runtime and there is none.
///
/// # Cancel safety
/// Dropping the future ends the attempt to connect.
pub async fn connect_backend<B, F>(
    builder: ClientBuilder,
    capabilities: Capabilities,
    make: impl Fn(BackendContext) -> F + Send + Sync + 'static,
) -> Result<LockClient, LockError>
where
    B: Backend,
    F: Future<Output = Result<B, LockError>> + Send + 'static,
{
    let limit = builder.own_connect_timeout().unwrap_or(DEFAULT_CONNECT_TIMEOUT);
    let mode = builder.own_connect_mode().unwrap_or_default();
    let client = builder.prepare()?;
    let context = client.context();
    let retry = ConnectRetry { clock: context.clock().clone(), limit, server: client.server().cloned() };
    if mode == ConnectMode::Lazy {
        return client.finish(Ok(Lazy::new(capabilities, context, retry, make)));
    }
    let connected = retry.connect(|| client.attempt(make(context.clone()))).await;
    client.finish(connected)
}

impl UrlOptions {
    /// Takes out the options that all backends share, and sets them in the builder of a client: `engine=own|caller`,
    /// `abort_margin=DURATION`, `max_hold=DURATION`, `local_handoff=COUNT/DURATION`, `connect_timeout=DURATION`,
    /// `connect=eager|lazy`, `label=TEXT`. The two about connecting apply only where the builder has not set them: the program
    /// knows how long its caller waits.
    ///
    /// ```
    /// use lock_core::ClientBuilder;
    /// use lock_kit::LockUrl;
    ///
    /// let mut options = LockUrl::parse("servers://db?label=billing-7&lease=30s")?.options();
    /// let builder = options.configure(ClientBuilder::new())?;
    /// let lease = options.take_duration("lease")?; // an option of the backend alone
    /// options.finish()?; // nothing is left
    /// assert!(lease.is_some());
    /// # Ok::<(), lock_core::LockError>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption), naming the option.
    pub fn configure(&mut self, mut builder: ClientBuilder) -> Result<ClientBuilder, LockError> {
        let engines = [("own", EngineChoice::Own), ("caller", EngineChoice::Caller)];
        if let Some(engine) = self.take_choice("engine", &engines)? {
            builder = builder.engine(engine);
        }
        if let Some(margin) = self.take_duration("abort_margin")? {
            // The program that made the builder knows how long it needs to stop; a URL can only add to that.
            let own = builder.own_abort_margin();
            builder = builder.abort_margin(margin.max(own));
        }
        if let Some(longest) = self.take_duration("max_hold")? {
            builder = builder.max_hold(longest);
        }
        if let Some(text) = self.take("local_handoff") {
            let (sections, time) = parse_handoff(&text)?;
            builder = builder.local_handoff(sections, time);
        }
        let timeout = self.take_duration("connect_timeout")?;
        if let Some(timeout) = timeout.filter(|_| builder.own_connect_timeout().is_none()) {
            builder = builder.connect_timeout(timeout);
        }
        let mode =
            self.take_choice("connect", &[("eager", ConnectMode::Eager), ("lazy", ConnectMode::Lazy)])?;
        if let Some(mode) = mode.filter(|_| builder.own_connect_mode().is_none()) {
            builder = builder.connect_mode(mode);
        }
        Ok(match self.take("label") {
            Some(label) => builder.label(label),
            None => builder,
        })
    }
}

/// Reads `COUNT/DURATION`.
fn parse_handoff(text: &str) -> Result<(u32, Duration), LockError> {
    let parts = text
        .split_once('/')
        .and_then(|(sections, time)| Some((sections.parse().ok()?, humantime::parse_duration(time).ok()?)));
    parts.ok_or_else(|| {
        invalid("the option \"local_handoff\" is not a count and a length of time")
            .remedy("write for example 100/10ms")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::LockUrl;

    #[test]
    fn what_the_program_says_about_connecting_comes_before_the_url() {
        let read = |builder: ClientBuilder| {
            let mut options = LockUrl::parse("test:?connect_timeout=3s&connect=lazy").unwrap().options();
            let builder = options.configure(builder).unwrap();
            (builder.own_connect_timeout(), builder.own_connect_mode())
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(read(ClientBuilder::new()), (seconds(3), Some(ConnectMode::Lazy)));
        let builder = ClientBuilder::new().connect_timeout(Duration::from_secs(60));
        assert_eq!(read(builder.connect_mode(ConnectMode::Eager)), (seconds(60), Some(ConnectMode::Eager)));
    }
}
