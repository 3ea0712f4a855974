//! The name of the server in a TLS client hello (RFC 6066, section 3), read without a key and without
//! changing a byte.
//!
//! This module parses the hello itself. The reason: rustls's `Acceptor` rejects hellos that an origin may
//! accept (for example without `signature_algorithms`), and `tls-parser` does not join fragments. With an
//! encrypted client hello (ECH) the name is the public one.

/// Maximum length of a client hello for which [`parse`] requests further bytes, including its record headers.
/// Hellos with post-quantum key shares have 2 kB.
pub const MAX_LENGTH: usize = 16 * 1024;

/// The record of the fatal alert unrecognized_name, by which a server refuses a name that it does not know
/// (RFC 6066, section 3; RFC 8446, section 6.2).
pub const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 1, 0, 2, 2, 112];

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// The result of parsing a client's first bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hello {
    /// The beginning of a client hello. Call [`parse`] again with at least this many bytes in total.
    More(usize),
    /// A client hello for this name, in lower case.
    Named(String),
    /// A client hello without a name.
    Nameless,
    /// Something else, or a client hello that is damaged or would need more than [`MAX_LENGTH`] bytes.
    NotTls,
}

/// Parses the client hello at the beginning of `bytes`, in one record or in several.
pub fn parse(bytes: &[u8]) -> Hello {
    let mut rest = bytes;
    let mut message = Vec::new();
    loop {
        let begun = [HANDSHAKE, 3].iter().zip(rest).all(|(expected, byte)| expected == byte);
        if !begun {
            return Hello::NotTls;
        }
        let before = bytes.len() - rest.len();
        let Some(([_, _, _, high, low], behind)) = rest.split_first_chunk::<5>() else {
            return more(before + 5);
        };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if length == 0 {
            return Hello::NotTls;
        }
        let fragment = behind.get(..length).unwrap_or(behind);
        message.extend_from_slice(fragment);
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Hello::NotTls;
        }
        let needed = match message[..] {
            [_, a, b, c, ..] => 4 + usize::from(a) * 65_536 + usize::from(u16::from_be_bytes([b, c])),
            _ => 4,
        };
        if message.len() >= 4 && message.len() >= needed {
            return match name(&message[4..needed]) {
                Some(Some(name)) => Hello::Named(name),
                Some(None) => Hello::Nameless,
                None => Hello::NotTls,
            };
        }
        if needed > MAX_LENGTH {
            return Hello::NotTls;
        }
        match behind.get(length..) {
            Some(next) => rest = next,
            None => return more(before + 5 + length.min(fragment.len() + needed - message.len())),
        }
    }
}

fn more(needed: usize) -> Hello {
    if needed > MAX_LENGTH { Hello::NotTls } else { Hello::More(needed) }
}

/// Returns the name in the body of a client hello (RFC 8446, section 4.1.2); the outer `None` means that the
/// body is not valid.
fn name(body: &[u8]) -> Option<Option<String>> {
    // legacy_version and random.
    let mut rest = body.get(2 + 32..)?;
    let _session_id = short_vector(&mut rest)?;
    let _cipher_suites = vector(&mut rest)?;
    let _compression_methods = short_vector(&mut rest)?;
    if rest.is_empty() {
        return Some(None);
    }
    let mut extensions = vector(&mut rest)?;
    while !extensions.is_empty() {
        let kind = number(&mut extensions)?;
        let mut data = vector(&mut extensions)?;
        if kind == SERVER_NAME {
            let mut names = vector(&mut data)?;
            let (HOST_NAME, behind) = names.split_first().map(|(kind, behind)| (*kind, behind))? else {
                return Some(None);
            };
            names = behind;
            return host(vector(&mut names)?).map(Some);
        }
    }
    Some(None)
}

/// Returns a host name in lower case.
fn host(bytes: &[u8]) -> Option<String> {
    let is_host = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_name = !bytes.is_empty() && bytes.len() <= 255 && bytes.iter().all(is_host);
    is_name.then(|| String::from_utf8_lossy(bytes).to_ascii_lowercase())
}

fn number(rest: &mut &[u8]) -> Option<u16> {
    let (number, behind) = rest.split_first_chunk::<2>()?;
    *rest = behind;
    Some(u16::from_be_bytes(*number))
}

/// Removes a vector with a two-byte length prefix from `rest`, and returns it.
fn vector<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = number(rest)?;
    let (vector, behind) = rest.split_at_checked(length.into())?;
    *rest = behind;
    Some(vector)
}

/// Removes a vector with a one-byte length prefix from `rest`, and returns it.
fn short_vector<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, behind) = rest.split_first()?;
    let (vector, behind) = behind.split_at_checked((*length).into())?;
    *rest = behind;
    Some(vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_length(bytes: &[u8]) -> Vec<u8> {
        [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
    }

    /// Returns a client hello for `name`, with another extension of `padding` bytes before it, in records of
    /// at most `fragment` bytes.
    fn hello(name: Option<&str>, padding: usize, fragment: usize) -> Vec<u8> {
        let extension = |kind: u16, data: &[u8]| [&kind.to_be_bytes()[..], &with_length(data)].concat();
        let mut extensions = extension(21, &vec![0; padding]);
        if let Some(name) = name {
            let host = [&[HOST_NAME][..], &with_length(name.as_bytes())].concat();
            extensions.extend(extension(SERVER_NAME, &with_length(&host)));
        }
        let body =
            [&[3, 3][..], &[7; 32], &[0], &with_length(&[0x13, 1]), &[1, 0], &with_length(&extensions)]
                .concat();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let message = [&[CLIENT_HELLO][..], &length[1..], &body].concat();
        message
            .chunks(fragment)
            .flat_map(|part| [&[HANDSHAKE, 3, 1][..], &with_length(part)].concat())
            .collect()
    }

    #[test]
    fn the_name_is_read_from_one_record_or_many() {
        for fragment in [1, 3, 100, 16_384] {
            let bytes = hello(Some("Shop.Example"), 300, fragment);
            assert_eq!(parse(&bytes), Hello::Named("shop.example".into()), "{fragment}");
            let early = [&bytes[..], b"early data"].concat();
            assert_eq!(parse(&early), Hello::Named("shop.example".into()));
            assert_eq!(parse(&hello(None, 10, fragment)), Hello::Nameless);
        }
    }

    #[test]
    fn every_cut_asks_for_more_bytes_than_there_are_and_never_too_many() {
        for fragment in [1, 2, 5, 80, 16_384] {
            let bytes = hello(Some("shop.example"), 40, fragment);
            for length in 0..bytes.len() {
                let Hello::More(needed) = parse(&bytes[..length]) else {
                    panic!("{length}: {:?}", parse(&bytes[..length]))
                };
                assert!(needed > length && needed <= bytes.len(), "{length} of {}: {needed}", bytes.len());
            }
        }
    }

    #[test]
    fn other_first_bytes_than_a_client_hello_are_recognised_at_once() {
        let long = hello(Some("shop.example"), MAX_LENGTH, 16_384);
        assert_eq!(parse(&long[..200]), Hello::NotTls);
        for other in [
            &b"GET / HTTP/1.1"[..],
            b"SSH-2.0",
            &[22, 2],
            &[22, 3, 1, 0, 0],
            &[22, 3, 1, 0, 4, 2],
            &[21, 3, 1],
        ] {
            assert_eq!(parse(other), Hello::NotTls, "{other:?}");
        }
        for bad in ["", "a b", "sh\u{f6}p.example"] {
            assert_eq!(parse(&hello(Some(bad), 0, 16_384)), Hello::NotTls, "{bad}");
        }
    }

    #[test]
    fn any_change_of_a_byte_is_answered_without_a_panic() {
        for fragment in [7, 16_384] {
            let good = hello(Some("shop.example"), 20, fragment);
            for at in 0..good.len() {
                for byte in 0..=255 {
                    let mut bytes = good.clone();
                    bytes[at] = byte;
                    if let Hello::More(needed) = parse(&bytes) {
                        assert!(needed > bytes.len() && needed <= MAX_LENGTH);
                    }
                }
            }
        }
    }
}
