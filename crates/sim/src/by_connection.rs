//! Values for the connections of a host, indexed by the connection's place in its stack.

use brisk_tcp::ConnId;

/// Values for some connections of one stack, in the order of their places.
#[derive(Debug)]
pub(crate) struct ByConnection<T> {
    places: Vec<Option<(ConnId, T)>>,
}

impl<T> Default for ByConnection<T> {
    fn default() -> ByConnection<T> {
        ByConnection { places: Vec::new() }
    }
}

impl<T> ByConnection<T> {
    /// Removes all values and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.places.clear();
    }

    /// Sets the value of a connection. The value of its predecessor in the same place is dropped.
    pub(crate) fn insert(&mut self, id: ConnId, value: T) {
        if self.places.len() <= id.index() {
            self.places.resize_with(id.index() + 1, || None);
        }
        self.places[id.index()] = Some((id, value));
    }

    pub(crate) fn get(&self, id: ConnId) -> Option<&T> {
        self.places.get(id.index())?.as_ref().filter(|(of, _)| *of == id).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, id: ConnId) -> Option<&mut T> {
        self.places.get_mut(id.index())?.as_mut().filter(|(of, _)| *of == id).map(|(_, value)| value)
    }

    pub(crate) fn remove(&mut self, id: ConnId) {
        if let Some(place) = self.places.get_mut(id.index())
            && place.as_ref().is_some_and(|(of, _)| *of == id)
        {
            *place = None;
        }
        // Empty places at the end are removed, so that an iteration does not visit them.
        while self.places.pop_if(|place| place.is_none()).is_some() {}
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ConnId, &T)> {
        self.places.iter().flatten().map(|(id, value)| (*id, value))
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use brisk_tcp::{ConnectConfig, Stack, StackConfig};
    use brisk_wire::Instant;

    use super::*;

    #[test]
    fn value_is_found_by_connection_and_not_by_place() {
        let local = StackConfig { addresses: vec![[10, 0, 0, 1].into()], ..StackConfig::default() };
        let mut stack = Stack::new(local, 1).unwrap();
        let remote: SocketAddr = "10.0.0.2:80".parse().unwrap();
        let mut open = |drop: Option<ConnId>| {
            drop.into_iter().for_each(|id| stack.abort(id, Instant::ZERO));
            drop.into_iter().for_each(|id| stack.release(id, Instant::ZERO));
            stack.connect(remote, &ConnectConfig::default(), Instant::ZERO).unwrap()
        };
        let (first, second) = (open(None), open(None));
        let mut values = ByConnection::default();
        values.insert(second, 'b');
        values.insert(first, 'a');
        assert_eq!(values.iter().collect::<Vec<_>>(), [(first, &'a'), (second, &'b')]);
        let third = open(Some(first));
        assert_eq!((third.index(), values.get(third)), (first.index(), None));
        values.remove(third);
        assert_eq!(values.get(first), Some(&'a'));
        values.insert(third, 'c');
        assert_eq!((values.get(first), values.get(third)), (None, Some(&'c')));
        values.remove(third);
        assert_eq!(values.iter().count(), 1);
    }
}
