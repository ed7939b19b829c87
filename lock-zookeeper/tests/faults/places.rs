//! TLS connections, and authentication with certificates.

use conformance_tests::Outcome;
use lock_core::ErrorKind;
use test_servers::{Certificates, ServerOptions};
use tokio::net::TcpStream;

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, connect, connect_patiently, refusal, soon, until};

cases!("places":
    behind_tls_with_an_authority_of_its_own,
    behind_tls_that_wants_a_certificate,
);

async fn works(stage: &Stage, options: &str) -> Outcome {
    // The server opens the port for TLS after the other one.
    until("the port is open", || async { Ok(TcpStream::connect(stage.server.address()).await.is_ok()) })
        .await?;
    let (one, other) = (stage.client(options).await?, stage.client(options).await?);
    let held = one.mutex(ROOM)?.acquire().await?;
    let waiter = stage.in_line(&other, 2).await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    stage.nothing_is_left_now("after both").await
}

async fn is_refused(url: &str) -> Outcome {
    let error = refusal(soon("the answer", connect(url)).await?)?;
    let kind = error.kind();
    ensure!(
        matches!(kind, ErrorKind::Unreachable | ErrorKind::Denied | ErrorKind::Server),
        "{url}: {error:?}"
    );
    Ok(())
}

async fn behind_tls_with_an_authority_of_its_own() -> Outcome {
    let stage = Stage::with(ServerOptions::new().tls()).await?;
    works(&stage, LONG).await?;
    let place = format!("zookeeper://{}/locks?session_timeout=2s", stage.server.address());
    // The client does not trust the server's authority.
    let folder = tempfile::tempdir()?;
    let others = Certificates::make_in(folder.path())?;
    is_refused(&format!("{place}&ca={}", others.authority.display())).await?;
    // The client does not fall back to another way.
    is_refused(&place).await?;
    let ca = stage.server.certificates().authority.display().to_string();
    let plain = stage.server.plain_address();
    is_refused(&format!("zookeeper://{plain}/locks?session_timeout=2s&ca={ca}")).await?;
    // A certificate that the server did not ask for identifies no user.
    let client = &stage.server.certificates().client;
    let options = format!("acl=creator&cert={}&key={}", client.certificate.display(), client.key.display());
    let nameless = connect_patiently(&format!("{}&{options}", stage.url(""))).await?;
    let answer = soon("the answer", nameless.mutex("mine")?.acquire()).await?.map(drop);
    let error = refusal(answer)?;
    ensure!(error.kind() == ErrorKind::Denied && error.to_string().contains("acl=creator"), "{error:?}");
    Ok(())
}

async fn behind_tls_that_wants_a_certificate() -> Outcome {
    let stage = Stage::with(ServerOptions::new().tls_with_client_certificates()).await?;
    works(&stage, "session_timeout=60s&acl=creator").await?;
    let place = format!("zookeeper://{}/locks?session_timeout=2s", stage.server.address());
    let ca = stage.server.certificates().authority.display().to_string();
    is_refused(&format!("{place}&ca={ca}")).await?;
    // A certificate of another authority.
    let folder = tempfile::tempdir()?;
    let others = Certificates::make_in(folder.path())?;
    let (certificate, key) = (others.client.certificate.display(), others.client.key.display());
    is_refused(&format!("{place}&ca={ca}&cert={certificate}&key={key}")).await?;
    Ok(())
}
