//! The rings of AF_XDP (`Documentation/networking/af_xdp.rst`): a producer puts entries in, and a consumer
//! takes them out. One of the two is the kernel; neither waits for the other.
//!
//! Each side counts its entries, modulo 2^32, in a word that only it writes. The producer writes an entry
//! before it advances its count (release); the consumer reads that count (acquire) before it reads the entry.
//! In the same way the consumer returns the place of an entry to the producer.

use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::mapping::Mapping;

/// Number of entries of a ring: a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size(u32);

impl Size {
    /// Returns the smallest power of two that is at least `wanted`, within 64 and 65,536.
    pub(super) fn at_least(wanted: u32) -> Size {
        Size(wanted.clamp(64, 1 << 16).next_power_of_two())
    }

    pub(super) fn entries(self) -> u32 {
        self.0
    }
}

/// A ring in memory shared with the kernel.
#[derive(Debug)]
struct Ring<T> {
    /// Owns the memory of all pointers.
    _mapping: Mapping,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    of: PhantomData<T>,
}

// SAFETY: the pointers point into the mapping, which moves together with them; entries are plain numbers.
unsafe impl<T: Copy + Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Returns `None` if the kernel's offsets lie outside the mapping.
    fn new(mapping: Mapping, offsets: &libc::xdp_ring_offset, size: Size) -> Option<Ring<T>> {
        let offset = |offset: u64| usize::try_from(offset).ok();
        let start = offset(offsets.desc)?;
        let last = start.checked_add((size.entries() as usize - 1) * size_of::<T>())?;
        mapping.at::<T>(last)?;
        Some(Ring {
            producer: mapping.at(offset(offsets.producer)?)?,
            consumer: mapping.at(offset(offsets.consumer)?)?,
            flags: mapping.at(offset(offsets.flags)?)?,
            entries: mapping.at(start)?,
            size: size.entries(),
            of: PhantomData,
            _mapping: mapping,
        })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: the word lies in the mapping, aligned, as long as `self` exists; both sides access it only
        // atomically.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as in `producer`.
        unsafe { self.consumer.as_ref() }
    }

    fn flags(&self) -> u32 {
        // SAFETY: as in `producer`.
        unsafe { self.flags.as_ref() }.load(Ordering::Relaxed)
    }

    fn entry(&self, count: u32) -> NonNull<T> {
        let index = count & (self.size - 1);
        // SAFETY: `new` has checked that `size` entries lie in the mapping, and the index is below `size`.
        unsafe { self.entries.add(index as usize) }
    }
}

/// Our side of a ring from which the kernel takes entries.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// Number of entries put in, published or not.
    put: u32,
    /// Number of entries that the kernel had taken at the last check.
    taken: u32,
}

impl<T: Copy> Producer<T> {
    /// Returns `None` if the mapping is too short.
    pub(super) fn new(mapping: Mapping, offsets: &libc::xdp_ring_offset, size: Size) -> Option<Producer<T>> {
        let ring: Ring<T> = Ring::new(mapping, offsets, size)?;
        let (put, taken) = (ring.producer().load(Ordering::Relaxed), ring.consumer().load(Ordering::Acquire));
        Some(Producer { ring, put, taken })
    }

    /// Puts an entry in; the kernel sees it after [`publish`](Producer::publish). Returns false if the ring
    /// is full.
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.is_full() {
            self.taken = self.ring.consumer().load(Ordering::Acquire);
            if self.is_full() {
                return false;
            }
        }
        // SAFETY: the place is valid and ours: the kernel has taken the previous entry, and reads the place
        // again only after our published count.
        unsafe { self.ring.entry(self.put).write(entry) };
        self.put = self.put.wrapping_add(1);
        true
    }

    fn is_full(&self) -> bool {
        self.put.wrapping_sub(self.taken) >= self.ring.size
    }

    /// Publishes the entries to the kernel.
    pub(super) fn publish(&mut self) {
        self.ring.producer().store(self.put, Ordering::Release);
    }

    /// True if the kernel has not taken all entries.
    pub(super) fn is_pending(&mut self) -> bool {
        self.taken = self.ring.consumer().load(Ordering::Acquire);
        self.put != self.taken
    }

    /// True if the kernel processes the ring only when it is called.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.flags() & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Our side of a ring into which the kernel puts entries.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    /// Number of entries taken, whether or not their places were given back.
    taken: u32,
    /// Number of entries that the kernel had put in at the last check.
    put: u32,
}

impl<T: Copy> Consumer<T> {
    /// Returns `None` if the mapping is too short.
    pub(super) fn new(mapping: Mapping, offsets: &libc::xdp_ring_offset, size: Size) -> Option<Consumer<T>> {
        let ring: Ring<T> = Ring::new(mapping, offsets, size)?;
        let (taken, put) = (ring.consumer().load(Ordering::Relaxed), ring.producer().load(Ordering::Acquire));
        Some(Consumer { ring, taken, put })
    }

    /// Takes an entry; the kernel may use its place again after [`give_back`](Consumer::give_back).
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.taken == self.put {
            self.put = self.ring.producer().load(Ordering::Acquire);
            if self.taken == self.put {
                return None;
            }
        }
        // SAFETY: the place is valid and ours: the kernel has published it, and writes to it again only after
        // the count that we return. Any bytes are a valid number.
        let entry = unsafe { self.ring.entry(self.taken).read() };
        self.taken = self.taken.wrapping_add(1);
        Some(entry)
    }

    /// Returns the places of taken entries to the kernel.
    pub(super) fn give_back(&mut self) {
        self.ring.consumer().store(self.taken, Ordering::Release);
    }
}

/// The four rings of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RingKind {
    Fill,
    Completion,
    Receive,
    Send,
}

impl RingKind {
    /// Maps a ring that the socket was asked to create; the kernel reports its layout.
    ///
    /// # Errors
    /// An error of the kernel.
    pub(super) fn map<T>(
        self,
        socket: BorrowedFd<'_>,
        offsets: &libc::xdp_mmap_offsets,
        size: Size,
    ) -> std::io::Result<(Mapping, libc::xdp_ring_offset)> {
        let (at, offsets) = match self {
            RingKind::Fill => (libc::XDP_UMEM_PGOFF_FILL_RING, offsets.fr),
            RingKind::Completion => (libc::XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr),
            RingKind::Receive => (libc::XDP_PGOFF_RX_RING as u64, offsets.rx),
            RingKind::Send => (libc::XDP_PGOFF_TX_RING as u64, offsets.tx),
        };
        let bytes = offsets.desc as usize + size.entries() as usize * size_of::<T>();
        let at = libc::off_t::try_from(at).map_err(|_| std::io::ErrorKind::Unsupported)?;
        Ok((Mapping::of(socket, at, bytes)?, offsets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's layout of a ring: a cache line for each word.
    const OFFSETS: libc::xdp_ring_offset =
        libc::xdp_ring_offset { producer: 0, consumer: 64, desc: 192, flags: 128 };

    fn size() -> Size {
        Size::at_least(64)
    }

    fn words(mapping: &Mapping) -> [NonNull<AtomicU32>; 3] {
        [OFFSETS.producer, OFFSETS.consumer, OFFSETS.flags].map(|offset| mapping.at(offset as usize).unwrap())
    }

    fn mapping() -> (Mapping, [NonNull<AtomicU32>; 3], NonNull<u64>) {
        let mapping = Mapping::anonymous(192 + 64 * 8).unwrap();
        let (words, entries) = (words(&mapping), mapping.at::<u64>(192).unwrap());
        (mapping, words, entries)
    }

    fn set(word: NonNull<AtomicU32>, value: u32) {
        // SAFETY: the mapping exists as long as its ring.
        unsafe { word.as_ref() }.store(value, Ordering::Release);
    }

    fn get(word: NonNull<AtomicU32>) -> u32 {
        // SAFETY: as in `set`.
        unsafe { word.as_ref() }.load(Ordering::Acquire)
    }

    #[test]
    fn a_producer_stops_when_the_ring_is_full_and_goes_on_across_the_wrap() {
        let (mapping, [producer, consumer, _], entries) = mapping();
        // Start just before the counts wrap around.
        let start = u32::MAX - 10;
        set(producer, start);
        set(consumer, start);
        let mut ring: Producer<u64> = Producer::new(mapping, &OFFSETS, size()).unwrap();
        assert!(!ring.is_pending());
        for n in 0..64 {
            assert!(ring.push(n), "{n}");
        }
        assert!(!ring.push(64), "the ring is full");
        assert_eq!(get(producer), start, "nothing is published yet");
        ring.publish();
        assert_eq!(get(producer), start.wrapping_add(64));
        assert!(ring.is_pending());
        // The kernel takes three.
        set(consumer, start.wrapping_add(3));
        assert!(ring.push(64) && ring.push(65) && ring.push(66) && !ring.push(67));
        ring.publish();
        set(consumer, start.wrapping_add(67));
        assert!(!ring.is_pending());
        // SAFETY: the ring still has the mapping.
        let first = unsafe { entries.add((start & 63) as usize).read() };
        assert_eq!(first, 64, "the place of the first entry is not reused");
    }

    #[test]
    fn consumer_takes_only_published_entries() {
        let (mapping, [producer, consumer, flags], entries) = mapping();
        let start = u32::MAX - 1;
        set(producer, start);
        set(consumer, start);
        for n in 0..64 {
            // SAFETY: the mapping has room for 64 entries, and nothing else uses it.
            unsafe { entries.add(n).write(n as u64 + 100) };
        }
        let mut ring: Consumer<u64> = Consumer::new(mapping, &OFFSETS, size()).unwrap();
        assert_eq!(ring.pop(), None);
        set(producer, start.wrapping_add(4));
        let taken: Vec<u64> = std::iter::from_fn(|| ring.pop()).collect();
        assert_eq!(taken, [162, 163, 100, 101]);
        assert_eq!(get(consumer), start, "the places are not given back yet");
        ring.give_back();
        assert_eq!(get(consumer), start.wrapping_add(4));
        assert_eq!(get(flags), 0);
    }

    #[test]
    fn ring_larger_than_its_mapping_is_refused() {
        for offsets in [
            libc::xdp_ring_offset { desc: 200, ..OFFSETS },
            libc::xdp_ring_offset { producer: 4096, ..OFFSETS },
            libc::xdp_ring_offset { consumer: 2, ..OFFSETS },
            libc::xdp_ring_offset { desc: u64::MAX, ..OFFSETS },
        ] {
            // A mapping is at least a page, so its end is checked against the requested length.
            let (mapping, ..) = mapping();
            assert!(Producer::<u64>::new(mapping, &offsets, size()).is_none(), "{offsets:?}");
        }
    }

    #[test]
    fn sizes_are_powers_of_two_within_bounds() {
        for (wanted, size) in [(0, 64), (65, 128), (2048, 2048), (u32::MAX, 65_536)] {
            assert_eq!(Size::at_least(wanted).entries(), size);
        }
    }

    /// Tests the order of entries and counts with a thread in place of the kernel.
    #[test]
    fn entries_of_a_ring_between_threads_arrive_whole_and_in_order() {
        const COUNT: u64 = 100_000;
        let (mapping, [producer, consumer, _], entries) = mapping();
        let addresses = [producer, consumer].map(|word| word.as_ptr() as usize);
        let start = entries.as_ptr() as usize;
        let mut ring: Producer<u64> = Producer::new(mapping, &OFFSETS, size()).unwrap();
        std::thread::scope(|scope| {
            let kernel = scope.spawn(move || {
                let [producer, consumer] = addresses.map(|word| {
                    NonNull::new(std::ptr::with_exposed_provenance_mut::<AtomicU32>(word)).unwrap()
                });
                let entries = NonNull::new(std::ptr::with_exposed_provenance_mut::<u64>(start)).unwrap();
                for n in 0..COUNT {
                    let count = n as u32;
                    while get(producer) == count {
                        std::hint::spin_loop();
                    }
                    // SAFETY: the ring outlives this thread, and the entry is published.
                    let entry = unsafe { entries.add((count & 63) as usize).read() };
                    assert_eq!(entry, n);
                    set(consumer, count.wrapping_add(1));
                }
            });
            for n in 0..COUNT {
                while !ring.push(n) {
                    std::hint::spin_loop();
                }
                ring.publish();
            }
            kernel.join().unwrap();
        });
    }
}
