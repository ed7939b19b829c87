//! Subfolders that stay for their next use although they are empty.
//!
//! Making a folder for the first reader or waiter of a lock, and removing it with the last one, would take as long as all other work
//! on files in a cycle, on ext4 without a journal ten times as long. So a client keeps those that it has used, up to a number, until
//! it ends.

use std::collections::HashSet;

use lock_core::spi::Mutex;

/// How many folders a client keeps.
const MOST: usize = 64;

/// The subfolders that a client keeps, by their paths in the folder.
#[derive(Debug, Default)]
pub(crate) struct KeptFolders(Mutex<HashSet<String>>);

impl KeptFolders {
    /// Keeps a subfolder. Returns another one that is kept no longer, if these would be too many.
    pub(crate) fn keep(&self, relative: &str) -> Option<String> {
        let mut kept = self.0.lock();
        if kept.contains(relative) {
            return None;
        }
        let excess = if kept.len() < MOST { None } else { kept.iter().next().cloned() };
        if let Some(excess) = &excess {
            kept.remove(excess);
        }
        kept.insert(relative.to_owned());
        excess
    }

    /// Keeps none any longer, and returns them.
    pub(crate) fn end(&self) -> HashSet<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_in_use_again_replaces_no_other() {
        let kept = KeptFolders::default();
        for number in (0..MOST).chain(0..MOST) {
            assert_eq!(kept.keep(&format!("shared/{number}")), None);
        }
        let mut removed: Vec<String> =
            (0..10).filter_map(|number| kept.keep(&format!("queue/{number}"))).collect();
        assert_eq!(removed.len(), 10);
        removed.extend(kept.end());
        removed.sort();
        removed.dedup();
        assert_eq!(removed.len(), MOST + 10, "each is returned once");
        assert!(kept.end().is_empty());
    }
}
