//! Tests of the texts of errors: they name the server, the lock, and each cause once.

use std::error::Error;
use std::io;
use std::time::Duration;

use crate::support::name;
use lock_core::{
    Capabilities, CharacterSet, ClientBuilder, ErrorKind, LockClient, LockError, NameRules, Operation, Reach,
};
use lock_memory::faults::Fault;
use lock_memory::{Loss, MemoryOptions, MemoryServer, Told};

const SERVER: &str = "test://cache.internal:6379/2";

fn client(server: &MemoryServer) -> LockClient {
    server.client_with(MemoryOptions::new(), ClientBuilder::new().server(SERVER)).unwrap()
}

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, "Connection refused (os error 111)")
}

/// Formats an error with all its causes, like a program that prints the whole chain.
fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[test]
fn each_cause_is_said_once_and_the_error_beneath_is_at_hand() {
    let error = LockError::new(ErrorKind::Unreachable, Operation::Connect)
        .because(format!("the connection failed: {}", refused()))
        .caused_by(refused());
    let chain = chain(&error);
    assert_eq!(chain.matches("Connection refused").count(), 1, "{chain}");
    let beneath = error.underlying().and_then(|error| error.downcast_ref::<io::Error>());
    assert_eq!(beneath.map(io::Error::kind), Some(io::ErrorKind::ConnectionRefused));
}

#[tokio::test]
async fn an_error_names_the_server_whatever_was_being_done() {
    let server = MemoryServer::new();
    let (client, about) = (client(&server), format!(" at {SERVER}: "));
    let lock = client.mutex("orders/42").unwrap();
    let names_both = |error: &LockError| {
        assert_eq!((error.server(), error.name()), (Some(SERVER), Some(&name("orders/42"))), "{error}");
        assert!(error.to_string().contains(&about), "{error}");
    };
    server.faults().sever();
    names_both(&lock.try_acquire().await.unwrap_err());
    names_both(&client.status("orders/42").await.unwrap_err());
    server.faults().heal();

    let guard = lock.acquire().await.unwrap();
    let broken = LockError::new(ErrorKind::Server, Operation::Release).because("on purpose");
    server.faults().inject(Operation::Release, Fault::Fail(broken));
    names_both(&guard.release().await.unwrap_err());
    client.idle().await;

    let guard = lock.acquire().await.unwrap();
    server.lose(&name("orders/42"), Loss::Delete, Told::AtOnce);
    names_both(&guard.reenter().unwrap_err());
    names_both(&guard.release().await.unwrap_err());

    let guard = lock.acquire().await.unwrap();
    let error = client.close(Duration::ZERO).await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot close the client of {SERVER}: ")), "{error}");
    drop(guard);
}

#[tokio::test]
async fn an_error_of_connecting_names_the_server() {
    let builder = ClientBuilder::new().server(SERVER);
    let capabilities = Capabilities::new("never", Reach::Network, NameRules::new(CharacterSet::PORTABLE, 64));
    let failed = LockError::new(ErrorKind::Unreachable, Operation::Connect).because("on purpose");
    let make = move |_| std::future::ready(Err::<Never, _>(failed.clone()));
    let error = lock_kit::connect_backend(builder, capabilities, make).await.unwrap_err();
    let text = "cannot connect to test://cache.internal:6379/2: the backend cannot be reached: on purpose";
    assert_eq!(error.to_string(), text);
}

use never::Never;

mod never {
    use std::sync::Arc;

    use lock_core::Released;
    use lock_core::{AcquireRequest, Backend, Capabilities, Grant, GroupId, LeaseState, LockError};

    /// A backend that cannot connect.
    #[derive(Debug)]
    pub(crate) enum Never {}

    impl Backend for Never {
        type Lease = ();

        fn capabilities(&self) -> &Capabilities {
            match *self {}
        }

        async fn acquire(&self, _: &AcquireRequest) -> Result<Option<Grant<()>>, LockError> {
            match *self {}
        }

        async fn cancel(&self, _: &AcquireRequest) -> Result<(), LockError> {
            match *self {}
        }

        async fn renew(&self, _: GroupId, _: &[Arc<()>]) -> Result<Vec<LeaseState>, LockError> {
            match *self {}
        }

        async fn release(&self, (): &()) -> Result<Released, LockError> {
            match *self {}
        }

        async fn ping(&self) -> Result<(), LockError> {
            match *self {}
        }
    }
}

#[tokio::test]
async fn an_error_about_permits_names_the_semaphore() {
    let server = MemoryServer::new();
    let client = client(&server);
    let render = client.semaphore("render", 2).unwrap();
    let held = render.acquire(2).await.unwrap();
    let says = |error: &LockError, words: &str| {
        let words = words.replace("SERVER", SERVER);
        assert!(error.to_string().starts_with(&words), "{error}");
    };
    let busy = render.permits(1).unwrap().acquire_for(Duration::ZERO).await.unwrap_err();
    says(&busy, "cannot acquire semaphore \"render\" at SERVER: too few of its permits are free: ");

    let too_many = render.permits(3).err().unwrap();
    says(&too_many, "cannot acquire semaphore \"render\": an option is not acceptable: it has 2 permits");
    let other_size = client.semaphore("render", 3).unwrap().try_acquire(1).await.unwrap_err();
    says(&other_size, "cannot acquire semaphore \"render\" at SERVER: an option is not acceptable: ");

    server.faults().sever();
    let unreachable = render.status().await.unwrap_err();
    says(&unreachable, "cannot inspect semaphore \"render\" at SERVER: the backend cannot be reached");
    server.faults().heal();

    let holder = held.hold().id().clone();
    render.break_holder(&holder).await.unwrap();
    held.lost().await;
    says(
        &held.release().await.unwrap_err(),
        "cannot release semaphore \"render\" at SERVER: the permits were lost",
    );
}
