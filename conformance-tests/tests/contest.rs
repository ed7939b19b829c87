//! Checks that contests find errors: with a lock that excludes they pass, and with one that does not they fail.

#[cfg(unix)]
#[path = "ensemble/connection.rs"]
mod connection;

#[cfg(unix)]
mod contests {
    use std::process::ExitCode;
    use std::time::Duration;

    use conformance_tests::{Contest, Contested, Failure, Outcome, contend_if_told};
    use libtest_mimic::{Arguments, Trial};

    use super::connection::Connection;

    const PATIENCE: Duration = Duration::from_secs(60);

    pub(super) fn main() -> ExitCode {
        if let Some(code) = contend_if_told::<Connection>() {
            return code;
        }
        let trials = vec![
            Trial::test("processes_with_a_lock_between_them_pass", || run(excluded())),
            Trial::test("processes_with_a_lock_each_are_found", || run(not_excluded())),
        ];
        libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
    }

    fn run(test: impl Future<Output = Outcome>) -> Result<(), libtest_mimic::Failed> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(test)?)
    }

    async fn contest(address: &str) -> Outcome<Contested> {
        let addresses = vec![address.to_owned(); 3];
        let mut contest = Contest::start(&addresses, PATIENCE).await?;
        contest.all_go_on(2).await?;
        contest.cling(1, Duration::from_millis(300)).await?;
        contest.go_on(&[0, 2], 2).await?;
        contest.end().await
    }

    async fn excluded() -> Outcome {
        let folder = tempfile::tempdir()?;
        let contested = contest(&format!("file:{}", folder.path().join("locks").display())).await?;
        if contested.losses == 0 && contested.visits > 10 {
            return Ok(());
        }
        Err(Failure::new(format!("{contested:?}")))
    }

    async fn not_excluded() -> Outcome {
        match contest("memory:").await {
            Err(failure) if failure.to_string().starts_with("exclusion: ") => Ok(()),
            other => Err(Failure::new(format!("three who held at once came out as {other:?}"))),
        }
    }
}

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    contests::main()
}

#[cfg(not(unix))]
fn main() {
    println!("contests need processes that can be told apart, and run on Unix systems only");
}
