//! A small sort. The sort of the standard library compiles to 10 to 20 kB for each type that it sorts.

/// Sorts by `key`. Equal elements may change places. Sorted elements take one comparison each.
pub(crate) fn sort_by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    if items.is_sorted_by_key(&key) {
        return;
    }
    // Heapsort: the largest element is at the front of items[..end].
    let len = items.len();
    (0..len / 2).rev().for_each(|root| sink(items, root, &key));
    for end in (1..len).rev() {
        items.swap(0, end);
        sink(&mut items[..end], 0, &key);
    }
}

/// Moves the element at `root` down until neither child is larger.
fn sink<T, K: Ord>(items: &mut [T], mut root: usize, key: &impl Fn(&T) -> K) {
    loop {
        let mut child = 2 * root + 1;
        if child >= items.len() {
            return;
        }
        if child + 1 < items.len() && key(&items[child]) < key(&items[child + 1]) {
            child += 1;
        }
        if key(&items[root]) >= key(&items[child]) {
            return;
        }
        items.swap(root, child);
        root = child;
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn order_is_that_of_the_standard_library(items: Vec<(u8, u16)>) {
            let (mut small, mut standard) = (items.clone(), items);
            sort_by_key(&mut small, |item| *item);
            standard.sort_unstable();
            prop_assert_eq!(small, standard);
        }
    }
}
