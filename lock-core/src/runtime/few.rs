//! Collections that mostly have one element, which needs no memory of its own.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// A list.
#[derive(Debug)]
pub(crate) struct Few<T> {
    first: Option<T>,
    others: Vec<T>,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { first: None, others: Vec::new() }
    }
}

impl<T> Few<T> {
    pub(crate) fn push(&mut self, value: T) {
        if self.first.is_none() {
            self.first = Some(value);
        } else {
            self.others.push(value);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Takes all out, in their order. It costs next to nothing if there are none.
    pub(crate) fn drain(&mut self, mut take: impl FnMut(T)) {
        let Some(first) = self.first.take() else { return };
        take(first);
        std::mem::take(&mut self.others).into_iter().for_each(take);
    }
}

impl<T> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.push(value));
    }
}

/// How much room a map keeps for its next elements when it has none.
const KEPT: usize = 4;

/// A map without an order.
#[derive(Debug)]
pub(crate) struct FewByKey<K, V, S> {
    first: Option<(K, V)>,
    #[allow(clippy::box_collection, reason = "most maps have none, and there is one for each lock")]
    others: Option<Box<HashMap<K, V, S>>>,
}

impl<K, V, S> Default for FewByKey<K, V, S> {
    fn default() -> Self {
        Self { first: None, others: None }
    }
}

impl<K: Eq + Hash, V, S: BuildHasher + Default> FewByKey<K, V, S> {
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        match &self.first {
            Some((first, value)) if first == key => Some(value),
            _ => self.others.as_ref()?.get(key),
        }
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match &mut self.first {
            Some((first, value)) if first == key => Some(value),
            _ => self.others.as_mut()?.get_mut(key),
        }
    }

    /// Adds a value under a key that has none.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.first.is_none() {
            self.first = Some((key, value));
        } else {
            self.others.get_or_insert_default().insert(key, value);
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        if let Some((_, value)) = self.first.take_if(|(first, _)| first == key) {
            return Some(value);
        }
        let others = self.others.as_mut()?;
        let value = others.remove(key);
        if others.is_empty() && others.capacity() > KEPT {
            self.others = None;
        }
        value
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let others = self.others.iter().flat_map(|others| others.iter());
        self.first.iter().map(|(key, value)| (key, value)).chain(others)
    }
}
