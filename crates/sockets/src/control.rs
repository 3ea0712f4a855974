//! Control messages as bytes, in this machine's layout.

use crate::errno::{Answer, Errno};
use crate::socket::Control;

/// Length of a control message's header: a length of 8 bytes, level and type.
const HEADER: usize = 16;

/// Returns the bytes that a control message with `len` bytes of data occupies.
fn space(len: usize) -> usize {
    HEADER + len.next_multiple_of(8)
}

/// Parses the messages in a control buffer.
///
/// # Errors
/// `EINVAL` if a message declares a length beyond the end of the buffer.
pub fn parse(mut rest: &[u8]) -> Answer<Vec<Control>> {
    let invalid = Errno(libc::EINVAL);
    let mut found = Vec::new();
    while rest.len() >= HEADER {
        let number = |at: usize| i32::from_ne_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
        let len = usize::from_ne_bytes(*rest.first_chunk().ok_or(invalid)?);
        let data = rest.get(HEADER..len).ok_or(invalid)?.to_vec();
        found.push(Control { level: number(8), kind: number(12), data });
        rest = rest.get(len.next_multiple_of(8)..).unwrap_or(&[]);
    }
    Ok(found)
}

/// Writes control messages as bytes, at most `capacity` bytes. Returns `MSG_CTRUNC` if some did not fit.
pub fn write(control: &[Control], capacity: usize) -> (Vec<u8>, i32) {
    let mut bytes = Vec::new();
    for one in control {
        let left = capacity - bytes.len();
        if HEADER + one.data.len() > left {
            // The last message is cut to the available space, header included (Linux: put_cmsg).
            if let Some(fits) = left.checked_sub(HEADER) {
                bytes.extend(left.to_ne_bytes());
                bytes.extend(one.level.to_ne_bytes());
                bytes.extend(one.kind.to_ne_bytes());
                bytes.extend(&one.data[..fits]);
            }
            return (bytes, libc::MSG_CTRUNC);
        }
        let end = (bytes.len() + space(one.data.len())).min(capacity);
        bytes.extend((HEADER + one.data.len()).to_ne_bytes());
        bytes.extend(one.level.to_ne_bytes());
        bytes.extend(one.kind.to_ne_bytes());
        bytes.extend(&one.data);
        bytes.resize(end, 0);
    }
    (bytes, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_are_parsed_and_written_and_truncation_is_reported() {
        let one = Control { level: libc::SOL_TCP, kind: libc::TCP_INQ, data: vec![1, 2, 3, 4] };
        let two = Control { level: libc::SOL_SOCKET, kind: libc::SCM_TIMESTAMPING, data: vec![7; 48] };
        let (bytes, flags) = write(&[one.clone(), two.clone()], 256);
        assert_eq!((bytes.len(), flags), (24 + 64, 0));
        assert_eq!(parse(&bytes), Ok(vec![one.clone(), two.clone()]));
        let (bytes, flags) = write(&[one.clone(), two.clone()], 60);
        let part = Control { data: vec![7; 20], ..two.clone() };
        assert_eq!((parse(&bytes), flags), (Ok(vec![one.clone(), part]), libc::MSG_CTRUNC));
        let (bytes, flags) = write(&[one.clone(), two], 30);
        assert_eq!((parse(&bytes), flags), (Ok(vec![one]), libc::MSG_CTRUNC), "no room for a header");
    }

    #[test]
    fn a_length_beyond_the_buffer_is_an_error() {
        let mut bytes = 400usize.to_ne_bytes().to_vec();
        bytes.resize(24, 0);
        assert_eq!(parse(&bytes), Err(Errno(libc::EINVAL)));
    }
}
