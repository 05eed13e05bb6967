//! CRC-32C (Castagnoli), the one checksum of the format. Reference: RFC 3720, appendix B.4.

use crc_fast::{CrcAlgorithm, Digest, checksum_combine};

/// A running CRC-32C over pieces that need not be adjacent.
pub struct Crc(Digest);

impl Default for Crc {
    fn default() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl Crc {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Continues with these bytes.
    #[must_use]
    #[allow(
        clippy::should_implement_trait,
        reason = "no sum of two sums; only with the feature testing is it visible"
    )]
    pub fn add(mut self, bytes: &[u8]) -> Self {
        self.0.update(bytes);
        self
    }

    /// The sum of all bytes so far.
    #[expect(clippy::cast_possible_truncation, reason = "a 32-bit sum in a 64-bit carrier")]
    pub fn sum(self) -> u32 {
        self.0.finalize() as u32
    }
}

/// CRC-32C of one slice.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The CRC-32C of bytes and others behind them, from the sum of each. `rest`: the number of those behind.
#[expect(clippy::cast_possible_truncation, reason = "a 32-bit sum in a 64-bit carrier")]
pub(crate) fn joined(first: u32, behind: u32, rest: usize) -> u32 {
    checksum_combine(CrcAlgorithm::Crc32Iscsi, first.into(), behind.into(), rest as u64) as u32
}

/// The CRC-32C of bytes of which the first ones were replaced, without reading the others. `whole`: that of all bytes before; `before`
/// and `after`: those of the bytes that were replaced, and of as many new ones; `rest`: the number of bytes behind them.
#[expect(clippy::cast_possible_truncation, reason = "a 32-bit sum in a 64-bit carrier")]
pub(crate) fn with_another_start(whole: u32, before: u32, after: u32, rest: usize) -> u32 {
    let behind = |start: u32| checksum_combine(CrcAlgorithm::Crc32Iscsi, start.into(), 0, rest as u64) as u32;
    whole ^ behind(before) ^ behind(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of CRC catalogues, and the vectors of RFC 3720 B.4.
    #[test]
    fn published_vectors() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(Crc::new().add(b"1234").add(b"").add(b"56789").sum(), 0xe306_9283);
    }

    #[test]
    fn sums_of_parts_give_that_of_all() {
        for rest in [0, 1, 4095, 100_000] {
            let (first, behind) = (vec![0x5a; 1000], vec![0xa5; rest]);
            let all = crc32c(&[&first[..], &behind].concat());
            assert_eq!(joined(crc32c(&first), crc32c(&behind), rest), all, "{rest} bytes");
        }
        assert_eq!(joined(crc32c(b""), crc32c(b"123456789"), 9), 0xe306_9283);
    }

    #[test]
    fn another_start_gives_the_sum_of_the_new_bytes() {
        for rest in [0, 1, 7, 64, 4095, 100_000] {
            let rest = vec![0x5a; rest];
            let (before, after) = ([1u8; 36], [2u8; 36]);
            let whole = |start: &[u8]| crc32c(&[start, &rest].concat());
            let sum = with_another_start(whole(&before), crc32c(&before), crc32c(&after), rest.len());
            assert_eq!(sum, whole(&after), "{} bytes", rest.len());
        }
    }
}
