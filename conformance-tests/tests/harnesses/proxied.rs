//! What the harnesses of real servers have in common: a `Fixture` with a `proxy` in front of the server.

/// Implements the harness with the methods of a place, which `start` returns; `requests` returns the request that
/// decides an operation. The methods that follow are those of this harness alone.
macro_rules! proxied_harness {
    ($harness:ident, left_out: $left_out:expr, start: $start:expr, requests: $requests:expr, $($methods:tt)*) => {
        #[async_trait]
        impl Harness for $harness {
            fn left_out() -> Option<String> {
                $left_out
            }

            async fn start() -> Outcome<Self> {
                Ok(Self($start.await?))
            }

            fn lacks(&self, _: Ability) -> Option<&'static str> {
                None
            }

            async fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
                connect(&self.0.address(), builder).await
            }

            fn address(&self) -> Option<String> {
                Some(self.0.address())
            }

            async fn connect(address: &str, builder: ClientBuilder) -> Result<LockClient, LockError> {
                connect(address, builder).await
            }

            async fn leftovers(&self) -> Outcome<Vec<String>> {
                let mut left = self.0.leftovers().await?;
                let connections = self.0.proxy.connections();
                if connections > 0 {
                    left.push(format!("{connections} connections"));
                }
                Ok(left)
            }

            async fn heal(&self) -> Outcome {
                self.0.proxy.heal();
                Ok(())
            }

            async fn lose_reply(&self, operation: Operation) -> Outcome {
                self.0.proxy.lose_reply($requests(operation)?, self.0.losing);
                Ok(())
            }

            async fn hold_reply(&self, operation: Operation) -> Outcome {
                self.0.proxy.hold_reply($requests(operation)?);
                Ok(())
            }

            async fn reply_is_held(&self) -> Outcome {
                self.0.proxy.reply_is_held().await;
                Ok(())
            }

            async fn let_replies_go(&self) -> Outcome {
                self.0.proxy.let_replies_go();
                Ok(())
            }

            async fn take_away(&self, name: &LockName, removal: Removal) -> Outcome {
                self.0.take_away(name, removal).await
            }

            $($methods)*
        }
    };
}
