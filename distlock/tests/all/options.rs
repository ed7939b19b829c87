//! A backend's row, its parser and its page name the same options.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use distlock::ClientBuilder;
use distlock::connection::LockUrl;
use distlock::spi::{Driver, UrlOption};

type Names = BTreeSet<String>;

fn names(options: &[UrlOption]) -> Names {
    options.iter().map(|option| option.name.to_owned()).collect()
}

fn of_row(driver: &Driver) -> Names {
    &names(driver.options) | &names(UrlOption::COMMON)
}

/// Returns the options that the backend's parser knows: it names them when it refuses one that it does not know.
async fn of_parser(driver: &Driver) -> Names {
    let mut known = Names::new();
    for url in driver.examples {
        let (_, rest) = url.split_once(':').unwrap();
        for scheme in driver.schemes {
            let separator = if rest.contains('?') { '&' } else { '?' };
            let url = LockUrl::parse(&format!("{scheme}:{rest}{separator}no_such_option=1")).unwrap();
            let error = (driver.connect)(url, ClientBuilder::new()).await.unwrap_err().to_string();
            if let Some((_, list)) = error.split_once("the options are: ") {
                known.extend(list.trim_end_matches(')').split(", ").map(str::to_owned));
            }
        }
    }
    known
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
async fn a_parser_accepts_what_its_row_says_and_nothing_else() {
    for driver in distlock::connection::drivers() {
        assert_eq!(of_parser(&driver).await, of_row(&driver), "{}", driver.name);
    }
}

#[test]
fn a_page_explains_the_options_of_its_row_and_their_defaults() {
    for driver in distlock::connection::drivers().iter().filter(|driver| driver.name != "memory") {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/backends/{}.md", driver.name));
        let page = of_page(&std::fs::read_to_string(path).unwrap());
        assert_eq!(page.keys().cloned().collect::<Names>(), of_row(driver), "{}", driver.name);
        for option in driver.options {
            let default = option.default.unwrap_or("–");
            assert_eq!(page[option.name], default, "the default of {} of {}", option.name, driver.name);
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
