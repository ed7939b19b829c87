//! Four-letter words, which a server answers with a text about itself.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{Failure, Outcome};

/// A suspended server answers no client.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

const ANSWERED_AT_ONCE: Duration = Duration::from_secs(1);

/// Returns the answer of the server at `address`, if it comes within this time.
pub(super) async fn ask(address: SocketAddr, word: &str, within: Duration) -> Outcome<String> {
    let answer = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Outcome::Ok(answer)
    };
    let late = |_| Failure::new(format!("{word} was not answered within {within:?}"));
    tokio::time::timeout(within, answer).await.map_err(late)?
}

/// Checks that the server at `address` serves clients. A request that comes too early is never answered, so each has
/// little time.
///
/// # Errors
/// When it does not serve clients now.
pub(super) async fn serves(address: SocketAddr) -> Outcome {
    role_in(&ask(address, "srvr", ANSWERED_AT_ONCE).await?).map(drop)
}

/// Returns the role in the answer to `srvr`.
///
/// # Errors
/// When the server does not serve clients now.
pub(super) fn role_in(answer: &str) -> Outcome<String> {
    let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "));
    let mode = mode.ok_or_else(|| Failure::new(format!("srvr was answered {answer:?}")))?;
    Ok(mode.trim().to_owned())
}

/// Returns the metrics in the answer to `mntr`.
pub(super) fn figures_in(answer: &str) -> HashMap<String, String> {
    let pairs = answer.lines().filter_map(|line| line.split_once('\t'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns whether an answer contains a number, in the form in which servers write session ids: `0x1000a4f7d2b0003`.
pub(super) fn has_number(answer: &str, number: i64) -> bool {
    let number = format!("0x{number:x}");
    answer.split(|letter: char| !letter.is_ascii_alphanumeric()).any(|word| word == number)
}

/// Returns the ids of the sessions that watch the node at `path`, from an answer that has the paths of nodes at the
/// beginning of lines, and their watchers on the lines below.
pub(super) fn watchers_in(answer: &str, path: &str) -> Vec<i64> {
    let below = answer.lines().skip_while(|line| *line != path).skip(1);
    let numbers = below.map_while(|line| line.strip_prefix("\t0x"));
    numbers.filter_map(|number| u64::from_str_radix(number, 16).ok()).map(u64::cast_signed).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]

    use super::*;

    #[test]
    fn the_role_is_in_the_answer() {
        let answer = "Zookeeper version: 3.8.0\nOutstanding: 0\nMode: leader\nNode count: 5\n";
        assert_eq!(role_in(answer), Ok("leader".to_owned()));
        let refusal = role_in("This ZooKeeper instance is not currently serving requests\n").unwrap_err();
        assert!(refusal.to_string().contains("not currently serving"), "{refusal}");
    }

    #[test]
    fn figures_have_a_name_and_a_value() {
        let figures = figures_in("zk_version\t3.8.0-x, built\nzk_watch_count\t7\nnoise\n");
        assert_eq!(figures.get("zk_watch_count").map(String::as_str), Some("7"));
        assert_eq!(figures.len(), 2);
    }

    #[test]
    fn the_watchers_of_a_node_are_below_its_path() {
        let answer = "/a\n\t0x1000a4f7d2b0003\n\t0x7\n/a/b\n\t0xff00000000000001\n";
        assert_eq!(watchers_in(answer, "/a"), [0x0100_0a4f_7d2b_0003, 7]);
        assert_eq!(watchers_in(answer, "/a/b"), [-0x00ff_ffff_ffff_ffff]);
        assert_eq!(watchers_in(answer, "/b"), [0; 0]);
    }

    #[test]
    fn a_session_is_named_as_a_whole() {
        let answer = "Session Sets (3)/(1):\n1 expire at Thu Jan 01 00:00:08 UTC 1970:\n\t0x1000a4f7d2b0003\n0x7:\n\t/e\n";
        assert!(has_number(answer, 0x0100_0a4f_7d2b_0003) && has_number(answer, 7));
        assert!(!has_number(answer, 0x0010_00a4_f7d2_b000) && !has_number(answer, 3));
        assert!(has_number("0xff00000000000001", -0x00ff_ffff_ffff_ffff));
    }
}
