//! The text files of the workspace, read once.

use std::fs;
use std::path::Path;

use crate::failure::Failure;

const ENDINGS: [&str; 5] = ["rs", "md", "toml", "sh", "yml"];
const NOT_OURS: [&str; 2] = ["target", ".git"];

#[derive(Debug)]
pub(crate) struct File {
    /// Relative to the root of the workspace, with `/` between its parts.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    pub(crate) fn has_ending(&self, ending: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == ending)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: Vec<File>,
    /// Every file and folder, including files that are not text.
    paths: Vec<String>,
}

impl Tree {
    pub(crate) fn read(root: &Path) -> Result<Self, Failure> {
        let mut tree = Self::default();
        tree.visit(root, "")
            .map_err(|error| Failure::new(format!("the workspace cannot be read: {error}")))?;
        tree.files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(tree)
    }

    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| File { path: path.to_owned(), text: text.to_owned() };
        let paths = files.iter().map(|(path, _)| (*path).to_owned()).collect();
        Self { files: files.iter().map(file).collect(), paths }
    }

    pub(crate) fn files(&self) -> &[File] {
        &self.files
    }

    pub(crate) fn with_ending<'a>(&'a self, ending: &'a str) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(move |file| file.has_ending(ending))
    }

    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Returns whether there is a file or folder with that path.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.paths.iter().any(|known| known == path)
    }

    fn visit(&mut self, folder: &Path, prefix: &str) -> std::io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if NOT_OURS.contains(&name.as_str()) {
                continue;
            }
            let path = format!("{prefix}{name}");
            self.paths.push(path.clone());
            if entry.file_type()?.is_dir() {
                self.visit(&entry.path(), &format!("{path}/"))?;
            } else if is_text(&path) {
                self.files.push(File { path, text: fs::read_to_string(entry.path())? });
            }
        }
        Ok(())
    }
}

fn is_text(path: &str) -> bool {
    path == ".ci/run"
        || Path::new(path).extension().is_some_and(|found| ENDINGS.iter().any(|ending| found == *ending))
}
