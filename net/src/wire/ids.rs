//! Ids of logs and directories in messages: 16 bytes between replicas, 32 hexadecimal digits for people.

use bytes::Bytes;
use chiplog::{Error, ErrorKind};

/// The digits of an id in text form.
const DIGITS: usize = 32;

/// The form in messages between replicas: 16 bytes, big-endian; empty for 0.
pub(crate) fn to_bytes(id: u128) -> Bytes {
    if id == 0 { Bytes::new() } else { Bytes::copy_from_slice(&id.to_be_bytes()) }
}

/// Parses that form; 0 if empty. None for any other length than 0 or 16.
pub(crate) fn from_bytes(bytes: &[u8]) -> Option<u128> {
    if bytes.is_empty() { Some(0) } else { bytes.try_into().ok().map(u128::from_be_bytes) }
}

/// The form for people: 32 hexadecimal digits; empty for 0.
///
/// ```
/// assert_eq!(chiplog_net::wire::ids::to_hex(10), "0000000000000000000000000000000a");
/// assert_eq!(chiplog_net::wire::ids::from_hex("0000000000000000000000000000000a").unwrap(), 10);
/// ```
pub fn to_hex(id: u128) -> String {
    if id == 0 { String::new() } else { format!("{id:032x}") }
}

/// Parses 32 hexadecimal digits; a part of an id is not accepted.
///
/// # Errors
/// `InvalidArgument`: anything else, or 0.
pub fn from_hex(text: &str) -> chiplog::Result<u128> {
    match u128::from_str_radix(text, 16) {
        Ok(id) if id != 0 && text.len() == DIGITS && !text.starts_with('+') => Ok(id),
        _ => {
            let what = format!(
                "{text:?} is not an id; give all {DIGITS} hexadecimal digits that `chiplog status` and `chiplog info` show"
            );
            Err(Error::new(ErrorKind::InvalidArgument, what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip() {
        for id in [0, 1, u128::MAX] {
            assert_eq!(from_bytes(&to_bytes(id)), Some(id));
        }
        assert_eq!(from_bytes(&[1; 15]), None);
        assert_eq!(from_hex(&to_hex(u128::MAX)).ok(), Some(u128::MAX));
        let zeros = |n| "0".repeat(n);
        let short = format!("{}1", zeros(30));
        let (long, signed, nothing) = (format!("{}1", zeros(32)), format!("+{short}"), zeros(32));
        for bad in ["", "0", "x", "abc", "-1", &short, &long, &signed, &nothing] {
            assert!(from_hex(bad).is_err(), "{bad}");
        }
    }
}
