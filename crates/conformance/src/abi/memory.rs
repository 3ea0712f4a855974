//! The caller's memory: buffers, addresses, vectors.

use std::ffi::c_void;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use brisk_sockets::{Answer, Errno};

/// Maximum number of entries of a vector (Linux: UIO_MAXIOV).
const MAX_VECTORS: i32 = 1024;

/// Returns a buffer that a call reads. A null pointer with a length is `EFAULT`.
///
/// # Safety
/// `data` is null or points to `len` readable bytes.
pub(super) unsafe fn bytes<'a>(data: *const c_void, len: usize) -> Answer<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: the caller's contract.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

/// Copies as much of `from` as fits into a buffer that a call writes.
///
/// # Safety
/// `to` is null or points to `len` writable bytes.
pub(super) unsafe fn put(to: *mut c_void, len: usize, from: &[u8]) {
    if !to.is_null() {
        // SAFETY: at most `len` bytes are written, and `from` is a slice of this library.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.cast(), from.len().min(len)) }
    }
}

/// Reads a socket address.
///
/// # Safety
/// `addr` is null or points to `len` readable bytes.
pub(super) unsafe fn address(addr: *const libc::sockaddr, len: libc::socklen_t) -> Answer<SocketAddr> {
    // SAFETY: the caller's contract.
    parse_address(unsafe { bytes(addr.cast(), len as usize)? })
}

/// True for an address of the family `AF_UNSPEC`.
///
/// # Safety
/// As for [`address`].
pub(super) unsafe fn is_unspecified(addr: *const libc::sockaddr, len: libc::socklen_t) -> bool {
    // SAFETY: the caller's contract.
    let bytes = unsafe { bytes(addr.cast(), len as usize) };
    let family = bytes.ok().and_then(|bytes| bytes.first_chunk::<2>());
    family.is_some_and(|family| i32::from(u16::from_ne_bytes(*family)) == libc::AF_UNSPEC)
}

fn parse_address(bytes: &[u8]) -> Answer<SocketAddr> {
    let short = Errno(libc::EINVAL);
    let family = bytes.first_chunk::<2>().map(|family| u16::from_ne_bytes(*family)).ok_or(short)?;
    let port = bytes.get(2..4).map(|port| u16::from_be_bytes([port[0], port[1]])).ok_or(short)?;
    match i32::from(family) {
        libc::AF_INET => {
            let ip = bytes.get(4..).and_then(|rest| rest.first_chunk::<4>()).ok_or(short)?;
            Ok(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from(*ip), port)))
        }
        libc::AF_INET6 => {
            let ip = bytes.get(8..).and_then(|rest| rest.first_chunk::<16>()).ok_or(short)?;
            Ok(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(*ip), port, 0, 0)))
        }
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Writes a socket address, cut to the buffer, and its full length to `len`.
///
/// # Safety
/// `len` is null or points to the number of writable bytes at `to`.
pub(super) unsafe fn put_address(
    to: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
    addr: Option<SocketAddr>,
) {
    if len.is_null() {
        return;
    }
    let bytes = addr.map(address_bytes).unwrap_or_default();
    // SAFETY: the caller's contract.
    unsafe {
        put(to.cast(), *len as usize, &bytes);
        *len = bytes.len() as libc::socklen_t;
    }
}

pub(super) fn address_bytes(addr: SocketAddr) -> Vec<u8> {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = (family as u16).to_ne_bytes().to_vec();
    bytes.extend(addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(addr) => {
            bytes.extend(addr.ip().octets());
            bytes.resize(16, 0);
        }
        SocketAddr::V6(addr) => {
            bytes.extend([0; 4]);
            bytes.extend(addr.ip().octets());
            bytes.resize(28, 0);
        }
    }
    bytes
}

/// Returns the entries of a vector.
///
/// # Safety
/// `vector` points to `count` entries.
pub(super) unsafe fn entries<'a>(vector: *const libc::iovec, count: i32) -> Answer<&'a [libc::iovec]> {
    if !(0..=MAX_VECTORS).contains(&count) {
        return Err(Errno(libc::EINVAL));
    }
    if vector.is_null() || count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's contract.
    Ok(unsafe { std::slice::from_raw_parts(vector, count as usize) })
}

/// Returns the bytes of all entries, one after another.
///
/// # Safety
/// Every entry points to the stated number of readable bytes.
pub(super) unsafe fn gather(entries: &[libc::iovec]) -> Answer<Vec<u8>> {
    let mut all = Vec::with_capacity(length(entries));
    for entry in entries {
        // SAFETY: the caller's contract.
        all.extend_from_slice(unsafe { bytes(entry.iov_base, entry.iov_len)? });
    }
    Ok(all)
}

/// True if an entry has a length but no memory.
pub(super) fn is_faulty(entries: &[libc::iovec]) -> bool {
    entries.iter().any(|entry| entry.iov_base.is_null() && entry.iov_len > 0)
}

/// Distributes bytes over the entries.
///
/// # Safety
/// Every entry points to the stated number of writable bytes.
pub(super) unsafe fn scatter(entries: &[libc::iovec], mut from: &[u8]) {
    for entry in entries {
        let (here, rest) = from.split_at(from.len().min(entry.iov_len));
        // SAFETY: the caller's contract.
        unsafe { put(entry.iov_base, entry.iov_len, here) }
        from = rest;
    }
}

pub(super) fn length(entries: &[libc::iovec]) -> usize {
    entries.iter().fold(0, |sum, entry| sum.saturating_add(entry.iov_len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip() {
        for text in ["192.0.2.1:33000", "[fd3d:fa7b:d17d::1]:8080", "[::ffff:192.0.2.1]:80"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(parse_address(&address_bytes(addr)), Ok(addr));
        }
        assert_eq!(parse_address(&[0; 16]), Err(Errno(libc::EAFNOSUPPORT)));
        assert_eq!(parse_address(&[2, 0, 1]), Err(Errno(libc::EINVAL)));
    }
}
