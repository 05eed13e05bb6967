//! The compression of a batch's body: none, lz4, or zstd.
//!
//! Producers pack and readers unpack. The log and the network pass on the packed bytes unchanged. Input from outside is
//! checked before it is accepted: [`check_frame`] walks the packed form without unpacking it.
//!
//! Invariant: no length that a batch claims is allocated before the packed bytes are known to be able to unpack to it.

use crate::error::{Error, ErrorKind, Result};
use zstd::zstd_safe;

/// The compression of the records of a batch.
///
/// ```
/// use chiplog::{BatchBuilder, Codec};
/// let mut batch = BatchBuilder::new();
/// batch.codec(Codec::Lz4);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// No compression: readers get slices of the mapped file.
    #[default]
    None,
    /// lz4 block format: fast.
    Lz4,
    /// zstd at level 3: small.
    Zstd,
    /// No compression: the batch is in an object store, and the log has a reference to it. Readers return the batch itself. Producers
    /// cannot make one.
    Reference,
}

impl Codec {
    /// The codec's number in the format.
    pub const fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
            Self::Reference => 4, // 3 is reserved
        }
    }

    /// The codec with this number; None if there is none.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::None),
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            4 => Some(Self::Reference),
            _ => None,
        }
    }
}

const ZSTD_LEVEL: i32 = 3;

/// Packs a body. The caller handles `Codec::None`.
pub(crate) fn compress(codec: Codec, body: &[u8]) -> Result<Vec<u8>> {
    match codec {
        Codec::None => Ok(body.to_vec()),
        Codec::Lz4 => Ok(lz4_flex::block::compress(body)),
        Codec::Zstd => zstd::bulk::compress(body, ZSTD_LEVEL).map_err(|e| {
            Error::new(ErrorKind::InvalidArgument, format!("zstd cannot compress the batch: {e}"))
        }),
        Codec::Reference => Err(Error::new(ErrorKind::InvalidArgument, NO_PRODUCER)),
    }
}

/// The most bytes that a byte of an lz4 block unpacks to: a match's length grows by up to 255 with each byte.
const LZ4_RATIO_MAX: usize = 255;
/// The most bytes that one block of a zstd frame unpacks to. The smallest block takes [`ZSTD_BLOCK_BYTES_MIN`].
const ZSTD_BLOCK_UNPACKED_MAX: usize = 128 << 10;
const ZSTD_BLOCK_BYTES_MIN: usize = 3;

/// Unpacks a body of exactly `length` bytes. Never allocates more than that, whatever the input claims, and allocates
/// nothing if the input is too short to unpack to `length`.
pub(crate) fn decompress(codec: Codec, packed: &[u8], length: usize) -> Result<Vec<u8>, &'static str> {
    check_claim(codec, packed, length)?;
    let body = match codec {
        Codec::None => packed.to_vec(),
        Codec::Lz4 => {
            let mut body = vec![0; length];
            let n = lz4_flex::block::decompress_into(packed, &mut body)
                .map_err(|_| "lz4 body does not unpack")?;
            body.truncate(n);
            body
        }
        Codec::Zstd => zstd::bulk::decompress(packed, length).map_err(|_| "zstd body does not unpack")?,
        Codec::Reference => return Err(NO_PRODUCER),
    };
    if body.len() == length { Ok(body) } else { Err(OTHER_LENGTH) }
}

const NO_PRODUCER: &str = "it is a reference to a batch in an object store, which only the log itself makes";
const OTHER_LENGTH: &str = "length of the unpacked body differs from its header";

/// Whether the packed bytes can unpack to `length` bytes, judged by their number and first bytes.
fn check_claim(codec: Codec, packed: &[u8], length: usize) -> Result<(), &'static str> {
    let unpacked_max = match codec {
        Codec::None => packed.len(),
        Codec::Lz4 => packed.len().saturating_mul(LZ4_RATIO_MAX),
        Codec::Zstd => {
            let claimed = zstd_safe::get_frame_content_size(packed);
            let claimed = claimed.map_err(|_| "zstd body does not start with a frame")?;
            if claimed.is_some_and(|claimed| claimed != length as u64) {
                return Err("length in the zstd frame differs from the batch's header");
            }
            (packed.len() / ZSTD_BLOCK_BYTES_MIN).saturating_mul(ZSTD_BLOCK_UNPACKED_MAX)
        }
        Codec::Reference => return Err(NO_PRODUCER),
    };
    if length <= unpacked_max { Ok(()) } else { Err("too few bytes to unpack to the length in the header") }
}

/// Checks that a packed body can unpack to exactly `length` bytes, without unpacking it and without allocating. For lz4
/// this checks all that unpacking checks. For zstd it checks the frame and the headers of its blocks, but not the
/// blocks' contents.
pub(crate) fn check_frame(codec: Codec, packed: &[u8], length: usize) -> Result<(), &'static str> {
    check_claim(codec, packed, length)?;
    match codec {
        Codec::None => Ok(()),
        Codec::Lz4 => match lz4_length(packed).ok_or("lz4 body does not unpack")? {
            n if n == length => Ok(()),
            _ => Err(OTHER_LENGTH),
        },
        Codec::Zstd => match zstd_safe::find_frame_compressed_size(packed) {
            Ok(n) if n == packed.len() => match zstd_safe::get_dict_id_from_frame(packed) {
                None => Ok(()),
                Some(_) => Err("zstd frame needs a dictionary; dictionaries are not supported"),
            },
            Ok(_) => Err("bytes follow the zstd frame"),
            Err(_) => Err("zstd frame is cut off or malformed"),
        },
        Codec::Reference => Err(NO_PRODUCER),
    }
}

/// The length that an lz4 block unpacks to; None if it does not unpack. Walks its sequences: each has literals and,
/// except for the last one, a match that starts up to 65,535 bytes back.
fn lz4_length(packed: &[u8]) -> Option<usize> {
    let mut rest = packed;
    let mut length = 0usize;
    loop {
        let (token, after) = rest.split_first()?;
        rest = after;
        let literals = lz4_count(usize::from(token >> 4), &mut rest)?;
        rest = rest.get(literals..)?;
        length = length.checked_add(literals)?;
        if rest.is_empty() {
            return Some(length);
        }
        let (offset, after) = rest.split_first_chunk()?;
        rest = after;
        let offset = usize::from(u16::from_le_bytes(*offset));
        if offset == 0 || offset > length {
            return None;
        }
        let copied = lz4_count(usize::from(token & 15), &mut rest)?.checked_add(4)?;
        length = length.checked_add(copied)?;
    }
}

/// A count that starts with four bits of the token. If these are 15, bytes follow that are added to it, up to the first
/// that is not 255.
fn lz4_count(bits: usize, rest: &mut &[u8]) -> Option<usize> {
    if bits < 15 {
        return Some(bits);
    }
    let more = rest.iter().position(|byte| *byte != 255)?;
    let last = usize::from(rest[more]);
    *rest = &rest[more + 1..];
    more.checked_mul(255)?.checked_add(last)?.checked_add(15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9u32;
        let next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8 & 0x0f
        };
        std::iter::repeat_with(next).take(n).collect()
    }

    #[test]
    fn check_accepts_frames_of_the_compressors() {
        let sizes = [4, 5, 12, 13, 100, 1_000, 65_535, 70_000, 1 << 20];
        for body in sizes.into_iter().flat_map(|n| [vec![7; n], noise(n)]) {
            for codec in [Codec::Lz4, Codec::Zstd] {
                let packed = compress(codec, &body).unwrap();
                assert_eq!(check_frame(codec, &packed, body.len()), Ok(()), "{codec:?} {}", body.len());
                assert_eq!(decompress(codec, &packed, body.len()).unwrap(), body);
                assert!(check_frame(codec, &packed, body.len() + 1).is_err());
                assert!(decompress(codec, &packed, body.len() + 1).is_err());
            }
        }
    }

    /// An lz4 block passes exactly if it unpacks to its length; a zstd frame that unpacks passes.
    #[test]
    fn the_check_refuses_nothing_that_unpacks() {
        for body in [vec![3; 300], noise(400)] {
            for codec in [Codec::Lz4, Codec::Zstd] {
                let good = compress(codec, &body).unwrap();
                for n in 0..good.len() * 8 {
                    let mut bad = good.clone();
                    bad[n / 8] ^= 1 << (n % 8);
                    bad.truncate(if n % 3 == 0 { n / 8 + 1 } else { bad.len() });
                    let checked = check_frame(codec, &bad, body.len()).is_ok();
                    let unpacks = decompress(codec, &bad, body.len()).is_ok();
                    assert!(checked || !unpacks, "{codec:?} bit {n}");
                    assert!(codec != Codec::Lz4 || checked == unpacks, "{codec:?} bit {n}");
                }
            }
        }
    }

    #[test]
    fn impossible_length_claim_allocates_nothing() {
        for codec in [Codec::Lz4, Codec::Zstd] {
            let packed = compress(codec, &[1; 100]).unwrap();
            assert!(decompress(codec, &packed, 256 << 20).is_err());
        }
        assert!(check_claim(Codec::Lz4, &[0; 100], 100 * LZ4_RATIO_MAX + 1).is_err());
    }
}
