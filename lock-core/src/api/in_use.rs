//! What of a client is in use, by name.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use crate::runtime::Mutex;

pub(crate) struct InUse<K, T>(Mutex<HashMap<K, Weak<T>>>);

impl<K: Hash + Eq, T> InUse<K, T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    /// Returns what is in use under this name, or else begins to use what `make` makes of it.
    pub(crate) fn get<E>(&self, name: K, make: impl FnOnce(&K) -> Result<T, E>) -> Result<Arc<T>, E> {
        let mut by_name = self.0.lock();
        if let Some(used) = by_name.get(&name).and_then(Weak::upgrade) {
            return Ok(used);
        }
        let fresh = Arc::new(make(&name)?);
        // Before the map grows, so that unused names never take more memory than those in use.
        if by_name.len() == by_name.capacity() {
            by_name.retain(|_, used| used.strong_count() > 0);
            let len = by_name.len();
            by_name.shrink_to(2 * len);
        }
        by_name.insert(name, Arc::downgrade(&fresh));
        Ok(fresh)
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().values().filter_map(Weak::upgrade).collect()
    }
}
