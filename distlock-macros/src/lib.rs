//! The attribute `#[locked]` of distlock. Use it through `distlock` and its feature `macros`.
#![forbid(unsafe_code)]

mod arguments;
mod expansion;
mod function;
mod name;

use proc_macro::TokenStream;
use quote::quote;

use crate::arguments::Arguments;
use crate::function::Function;

/// Runs the body of a function under a distributed lock.
///
/// ```
/// use distlock::{Hold, LockClient, LockError, locked};
///
/// struct Order {
///     id: u64,
/// }
///
/// struct Billing {
///     locks: LockClient,
/// }
///
/// impl Billing {
///     #[locked("orders/{order.id}", client = self.locks, wait = "2s", hold = hold)]
///     async fn pay(&self, order: &Order) -> Result<String, LockError> {
///         let token = hold.token(); // goes with each write to what the lock protects
///         Ok(format!("order {} is paid with token {token:?}", order.id))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let billing = Billing { locks: distlock::connect("memory:").await? };
/// println!("{}", billing.pay(&Order { id: 42 }).await?);
/// # Ok(())
/// # }
/// ```
///
/// The function returns `Result<T, E>` with `E: From<LockError>`: an error of the lock is returned in the same way as one of the
/// body. The body is that of a `with_lock`. **It never runs without the lock, and if the lock is lost while it runs, it is
/// dropped at its next await**, and the function returns the loss. A function that calls itself, or another one with the
/// same lock, enters the lock again.
///
/// # The name
/// The first argument is the name of the lock. Each `{…}` in it is any expression with a `Display`: `{order.id}`,
/// `{self.shard_of(order)}`, `{days[0]}`. `{{` and `}}` are braces. The name is made before the body starts, so the body may
/// move the arguments. Values are not escaped: `"{a}/{b}"` is the same name for `1/2` and `3` as for `1` and `2/3`.
///
/// Without a name, the lock is named after the path of the function, such as `billing::jobs::nightly`. It changes when the
/// function is renamed or moved: while two versions of a program run, they do not exclude each other then. A method needs
/// a name, because the attribute does not see the type it belongs to.
///
/// # Options
/// | option | meaning | without it |
/// |---|---|---|
/// | `client = EXPRESSION` | the `LockClient` whose lock it is, or something that points to one | required, or `lock` |
/// | `lock = EXPRESSION` | a lock instead of a name and a client: an `Arc<dyn DistributedLock>` | |
/// | `wait = "2s"` | how long to wait for the lock: `500ms`, `30s`, `1h 30m`; `0s` tries once | for ever |
/// | `on_busy = error` | if another owner has the lock all that time, the function returns an error of the kind `Busy` | `error` |
/// | `on_busy = skip` | the function returns `Ok(None)` instead; its return type is `Result<Option<T>, E>` | |
/// | `hold = NAME` | the `Hold` has that name in the body, for its token | |
/// | `mode = read` | the read side of the read-write lock of that name, for readers beside each other; `write` and `exclusive` are the mutex | `exclusive` |
///
/// # Functions without `async`
/// A function that is not `async` blocks its thread: its client is a `distlock::blocking::LockClient`, or its lock a
/// `distlock::blocking::DistributedLock`. The loss of the lock does not stop its body; it is returned afterwards.
///
/// ```
/// use distlock::{LockError, blocking, locked};
///
/// #[locked(client = locks)]
/// fn migrate(locks: &blocking::LockClient) -> Result<u32, LockError> {
///     Ok(7)
/// }
///
/// assert_eq!(migrate(&blocking::connect("memory:")?)?, 7);
/// # Ok::<(), LockError>(())
/// ```
///
/// # With other attributes
/// In an `#[async_trait]` implementation, write `#[locked]` on the method, and use the arguments by their names, not by parts
/// of a pattern. An attribute that removes the `async` of a function, such as `#[tokio::main]`, stands below `#[locked]`.
#[proc_macro_attribute]
pub fn locked(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expanded(arguments, item.clone()).unwrap_or_else(|error| {
        // The function stays as it is, so that its callers bring no errors of their own.
        let error = error.into_compile_error();
        let mut refused = TokenStream::from(quote!(#error #[allow(unused_variables)]));
        refused.extend(item);
        refused
    })
}

fn expanded(arguments: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let function: Function = syn::parse(item)?;
    let arguments: Arguments = syn::parse(arguments)?;
    expansion::expand(&arguments, &function).map(TokenStream::from)
}
