//! A backend's options are those that its page explains, and that an error names.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use distlock::ClientBuilder;
use distlock::connection::LockUrl;
use distlock::spi::{Driver, UrlOptions};

type Names = BTreeSet<String>;

/// The options of the backend's URLs, with those that all backends share.
fn names(driver: &Driver) -> Names {
    let mut shared = UrlOptions::default();
    shared.configure(ClientBuilder::new()).unwrap();
    let own = (driver.options)();
    own.keys().chain(shared.known().keys()).map(|name| (*name).to_owned()).collect()
}

/// Returns the options in the table of the backend's page, each with its default.
fn of_page(page: &str) -> BTreeMap<String, String> {
    let rows = page.lines().skip_while(|line| *line != "| option | default | |").skip(2);
    let cells = rows.take_while(|line| line.starts_with('|')).map(|line| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        (cells.next().unwrap_or_default(), cells.next().unwrap_or_default())
    });
    cells
        .flat_map(|(names, default)| {
            names.split(", ").map(|name| (name.trim_matches('`').to_owned(), default.replace('`', "")))
        })
        .collect()
}

#[tokio::test]
async fn a_url_with_an_option_that_there_is_not_learns_of_those_there_are() {
    for driver in distlock::connection::drivers() {
        for url in driver.examples {
            let separator = if url.contains('?') { '&' } else { '?' };
            let url = LockUrl::parse(&format!("{url}{separator}no_such_option=1")).unwrap();
            let error = (driver.connect)(url, ClientBuilder::new()).await.unwrap_err().to_string();
            // An example may name a file that there is not, which is refused first.
            let Some((_, list)) = error.split_once("the options are: ") else { continue };
            let known: Names = list.trim_end_matches(')').split(", ").map(str::to_owned).collect();
            assert_eq!(known, names(&driver), "{}", driver.name);
        }
    }
}

#[test]
fn a_page_explains_the_options_and_their_defaults() {
    for driver in distlock::connection::drivers().iter().filter(|driver| driver.name != "memory") {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/backends/{}.md", driver.name));
        let page = of_page(&std::fs::read_to_string(path).unwrap());
        assert_eq!(page.keys().cloned().collect::<Names>(), names(driver), "{}", driver.name);
        for (name, default) in (driver.options)() {
            let default = default.as_deref().unwrap_or("–");
            assert_eq!(page[name], default, "the default of {name} of {}", driver.name);
        }
    }
}

#[test]
fn a_row_is_complete_and_its_examples_are_its_own() {
    for driver in distlock::connection::drivers() {
        assert!(!driver.summary.is_empty() && !driver.summary.ends_with('.'), "{}", driver.name);
        assert!(!driver.examples.is_empty(), "{}", driver.name);
        for example in driver.examples {
            let url = LockUrl::parse(example).unwrap();
            assert!(driver.schemes.contains(&url.scheme()), "{example}");
            distlock::connection::lease_of(example).unwrap();
        }
    }
}
