//! A part of a connection that allocates memory at its first change.
//!
//! Most connections never lose a segment, are never paced and have no gap. The state for these cases is in
//! [`OnDemand`] parts, which take one pointer each until a value is written. An idle connection frees the
//! parts that again have their initial value ([`OnDemand::release`]).

use alloc::boxed::Box;
use core::fmt;
use core::ops::{Deref, DerefMut};

/// A type with an initial value that needs no memory of its own.
pub(crate) trait Initial: PartialEq + Sized + 'static {
    const INITIAL: Self;
    /// The initial value in static memory.
    const SHARED: &'static Self;
}

/// A `T` that is allocated at the first mutable borrow.
#[derive(Clone)]
pub(crate) struct OnDemand<T>(Option<Box<T>>);

impl<T: Initial> OnDemand<T> {
    /// Returns the initial value without an allocation.
    pub(crate) const fn new() -> Self {
        OnDemand(None)
    }

    /// Returns the value if it is allocated. Otherwise callers that only remove or reset need do nothing.
    #[inline]
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Frees the memory if the value is the initial one.
    pub(crate) fn release(&mut self) {
        self.0.take_if(|value| **value == *T::SHARED);
    }
}

impl<T: Initial> Default for OnDemand<T> {
    fn default() -> Self {
        OnDemand::new()
    }
}

impl<T: Initial> Deref for OnDemand<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::SHARED)
    }
}

impl<T: Initial> DerefMut for OnDemand<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_with(|| Box::new(T::INITIAL))
    }
}

impl<T: Initial> PartialEq for OnDemand<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Initial + Eq> Eq for OnDemand<T> {}

/// Prints the value, allocated or not.
impl<T: Initial + fmt::Debug> fmt::Debug for OnDemand<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[derive(Clone, PartialEq, Debug)]
    struct List(Vec<u8>);

    impl Initial for List {
        const INITIAL: Self = List(Vec::new());
        const SHARED: &'static Self = &Self::INITIAL;
    }

    #[test]
    fn memory_is_allocated_by_a_change_and_freed_at_the_initial_value() {
        let mut list = OnDemand::<List>::new();
        assert!((*list).0.is_empty() && list.get_mut().is_none());
        (*list).0.push(1);
        list.release();
        assert_eq!(*list, List([1].into()));
        (*list).0.clear();
        assert!(list.get_mut().is_some());
        list.release();
        assert!(list.get_mut().is_none());
    }
}
