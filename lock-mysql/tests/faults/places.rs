//! Ways to the server: TLS, client certificates, a Unix socket.

use conformance_tests::{Failure, Outcome};
use lock_core::{ErrorKind, LockClient, LockError};
use test_servers::{Certificates, MySqlFlavour, ServerOptions};

use crate::case::{cases, ensure};
use crate::stage::{Stage, connect};

cases!("places":
    tls_with_an_authority_of_ones_own,
    tls_with_the_wrong_authority_is_refused,
    tls_is_not_given_up_for_plain_text,
    client_certificates,
    a_unix_socket,
);

fn refusal(answer: Result<LockClient, LockError>) -> Outcome<LockError> {
    answer.err().ok_or_else(|| Failure::new("the client was let in"))
}

async fn tls_with_an_authority_of_ones_own(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with(ServerOptions::new().flavour(flavour).tls()).await?;
    let client = connect(&stage.server.url()).await?;
    stage.works(&client).await?;
    // The server refuses connections without TLS.
    let plain = format!("mysql://locks:secret@{}?tls=off", stage.place());
    let error = refusal(connect(&plain).await)?;
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    Ok(())
}

async fn tls_with_the_wrong_authority_is_refused(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with(ServerOptions::new().flavour(flavour).tls()).await?;
    let folder = tempfile::tempdir()?;
    let others = Certificates::make_in(folder.path())?;
    for url in [
        format!("mysql://locks:secret@{}?extra_ca={}", stage.place(), others.authority.display()),
        format!("mysql://locks:secret@{}?tls=on", stage.place()),
    ] {
        let error = refusal(connect(&url).await)?;
        ensure!(error.kind() == ErrorKind::Denied && !error.is_retryable(), "{error:?}");
        ensure!(!error.to_string().contains("secret") && error.to_string().contains("TLS"), "{error}");
    }
    Ok(())
}

async fn tls_is_not_given_up_for_plain_text(flavour: MySqlFlavour) -> Outcome {
    let name = match flavour {
        MySqlFlavour::MariaDb => "skip-ssl",
        MySqlFlavour::MySql57 => "ssl",
    };
    let value = if name == "ssl" { "0" } else { "1" };
    let stage = Stage::with(ServerOptions::new().flavour(flavour).setting(name, value)).await?;
    let error = refusal(connect(&format!("mysql://locks:secret@{}?tls=on", stage.place())).await)?;
    ensure!(error.to_string().contains("TLS"), "{error}");
    stage.works(&connect(&stage.server.url()).await?).await
}

async fn client_certificates(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with(ServerOptions::new().flavour(flavour).tls_with_client_certificates()).await?;
    stage.works(&connect(&stage.server.url()).await?).await?;
    let authority = stage.server.certificates().authority.display();
    let error =
        refusal(connect(&format!("mysql://locks:secret@{}?extra_ca={authority}", stage.place())).await)?;
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    Ok(())
}

async fn a_unix_socket(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::alone(flavour).await?;
    let client = connect(&stage.server.unix_url()).await?;
    stage.works(&client).await
}
