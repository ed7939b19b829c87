//! A short list, stored in place: the search copies a state for each step that it tries, and a separate allocation for each
//! list would take most of the time.
use std::hash::{Hash, Hasher};

/// The elements come first, then `None`. Pushing more elements than fit is a defect of the model, and panics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<T, const ROOM: usize>([Option<T>; ROOM]);

impl<T: Copy, const ROOM: usize> Default for List<T, ROOM> {
    fn default() -> Self {
        Self([None; ROOM])
    }
}

impl<T: Copy, const ROOM: usize> List<T, ROOM> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.0.iter().map_while(Option::as_ref)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map_while(Option::as_mut)
    }

    pub(crate) fn push(&mut self, item: T) {
        let mut length = 0;
        while self.0[length].is_some() {
            length += 1;
        }
        self.0[length] = Some(item);
    }

    pub(crate) fn pop_first(&mut self) -> Option<T> {
        let first = self.0[0];
        self.0.copy_within(1.., 0);
        self.0[ROOM - 1] = None;
        first
    }

    pub(crate) fn retain(&mut self, is_kept: impl Fn(&T) -> bool) {
        let all = *self;
        *self = Self::default();
        all.iter().filter(|item| is_kept(item)).for_each(|item| self.push(*item));
    }
}

impl<T: Hash, const ROOM: usize> Hash for List<T, ROOM> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // A loop without an iterator: in a build without optimisation each step of one is several calls.
        let mut position = 0;
        while position < ROOM
            && let Some(item) = &self.0[position]
        {
            item.hash(state);
            position += 1;
        }
        // The end of the list: no element begins with this value.
        state.write_u8(u8::MAX);
    }
}
