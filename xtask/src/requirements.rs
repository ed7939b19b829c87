//! What must be installed on the machine before the checks run. A backend that needs a server adds one row to
//! [`TABLE`].

use crate::process::Process;

/// One program or component that the checks need.
#[derive(Debug)]
pub(crate) struct Requirement {
    pub(crate) name: &'static str,
    /// A command that succeeds if it is installed.
    pub(crate) proof: &'static [&'static str],
    pub(crate) source: Source,
    /// The words in `DISTLOCK_SKIP`, each of which leaves it out, together with the tests that need it. Without words,
    /// it is always needed.
    pub(crate) skip_words: &'static [&'static str],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A package of Debian and Ubuntu.
    Package(&'static str),
    /// A component of the Rust toolchain.
    Component(&'static str),
}

pub(crate) const TABLE: &[Requirement] = &[
    Requirement {
        name: "rustfmt",
        proof: &["cargo", "fmt", "--version"],
        source: Source::Component("rustfmt"),
        skip_words: &[],
    },
    Requirement {
        name: "clippy",
        proof: &["cargo", "clippy", "--version"],
        source: Source::Component("clippy"),
        skip_words: &[],
    },
    Requirement {
        name: "flock",
        proof: &["flock", "--version"],
        source: Source::Package("util-linux"),
        skip_words: &[],
    },
    // Only the program is needed. If the package starts a server by itself, on the default port, that server is left
    // alone: the tests start their own.
    Requirement {
        name: "redis-server",
        proof: &["redis-server", "--version"],
        source: Source::Package("redis-server"),
        skip_words: &["redis"],
    },
    // The tests run its jar with plain `java`, which comes with the package; the package starts no service.
    Requirement {
        name: "zookeeper",
        proof: &["java", "-cp", "/usr/share/java/zookeeper.jar", "org.apache.zookeeper.Version", "--full"],
        source: Source::Package("zookeeper"),
        skip_words: &["zookeeper"],
    },
    // A common lock library of Java services, for the tests that share a lock with it.
    Requirement {
        name: "curator",
        proof: &["test", "-e", "/usr/share/java/curator-recipes.jar"],
        source: Source::Package("libcurator-recipes-java"),
        skip_words: &["curator", "zookeeper"],
    },
    Requirement {
        name: "javac",
        proof: &["javac", "-version"],
        source: Source::Package("default-jdk-headless"),
        skip_words: &["curator", "zookeeper"],
    },
    Requirement {
        name: "mariadbd",
        proof: &["mariadbd", "--no-defaults", "--version"],
        source: Source::Package("mariadb-server"),
        skip_words: &["mariadb", "mysql"],
    },
    // The tests download a MySQL with it.
    Requirement {
        name: "npm",
        proof: &["npm", "--version"],
        source: Source::Package("npm"),
        skip_words: &["mysql57", "mysql"],
    },
];

impl Requirement {
    pub(crate) fn is_present(&self) -> bool {
        let Some((program, arguments)) = self.proof.split_first() else {
            return false;
        };
        Process::new(program, arguments).succeeds()
    }

    /// Returns whether `skip`, the value of `DISTLOCK_SKIP` (words between commas), names it.
    pub(crate) fn is_left_out_by(&self, skip: &str) -> bool {
        skip.split(',').any(|named| self.skip_words.contains(&named.trim()))
    }

    /// Returns the line that tells the user what to do.
    pub(crate) fn remedy(&self) -> String {
        let name = self.name;
        let line = match self.source {
            Source::Component(component) => format!("{name} is missing: rustup component add {component}"),
            Source::Package(package) => {
                format!("{name} is missing: install it (on Debian and Ubuntu: apt-get install {package})")
            }
        };
        match self.skip_words.first() {
            Some(word) => format!("{line}, or leave its tests out with DISTLOCK_SKIP={word}"),
            None => line,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Requirement = Requirement {
        name: "a server",
        proof: &["sh", "-c", "exit 1"],
        source: Source::Package("some-server"),
        skip_words: &["some", "all"],
    };

    #[test]
    fn presence_is_what_the_proof_says() {
        assert!(!SERVER.is_present());
        assert!(Requirement { proof: &["true"], ..SERVER }.is_present());
        assert!(!Requirement { proof: &[], ..SERVER }.is_present());
    }

    #[test]
    fn only_words_of_its_own_leave_it_out() {
        assert!(SERVER.is_left_out_by("other, some"));
        assert!(SERVER.is_left_out_by("all"));
        assert!(!SERVER.is_left_out_by("another"));
        assert!(!SERVER.is_left_out_by(""));
        assert!(!Requirement { skip_words: &[], ..SERVER }.is_left_out_by("some"));
    }

    #[test]
    fn the_remedy_is_one_line_that_names_the_package() {
        let line = SERVER.remedy();
        assert!(
            line.contains("apt-get install some-server") && line.contains("DISTLOCK_SKIP=some"),
            "{line}"
        );
        assert_eq!(line.lines().count(), 1);
    }

    #[test]
    fn every_row_can_be_proven() {
        assert!(TABLE.iter().all(|requirement| !requirement.proof.is_empty()));
    }
}
