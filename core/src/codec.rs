//! How a batch's body is packed: not at all, by lz4, or by zstd.
//!
//! Only producers pack and only readers unpack; everything between hands the packed bytes on.

use crate::error::{Error, ErrorKind, Result};

/// How the records of a batch are compressed.
///
/// ```
/// use chiplog::{BatchBuilder, Codec};
/// let mut batch = BatchBuilder::new();
/// batch.codec(Codec::Lz4);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// As they are: readers get slices of the mapped file.
    #[default]
    None,
    /// lz4 block format: fast.
    Lz4,
    /// zstd at level 3: small.
    Zstd,
}

impl Codec {
    /// The codec's number in the format.
    pub const fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    /// The codec of that number, if there is one.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::None),
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            _ => None,
        }
    }
}

const ZSTD_LEVEL: i32 = 3;

/// Packs a body. `Codec::None` is the caller's affair: it has nothing to do.
pub(crate) fn compress(codec: Codec, body: &[u8]) -> Result<Vec<u8>> {
    match codec {
        Codec::None => Ok(body.to_vec()),
        Codec::Lz4 => Ok(lz4_flex::block::compress(body)),
        Codec::Zstd => zstd::bulk::compress(body, ZSTD_LEVEL).map_err(|e| {
            Error::new(ErrorKind::InvalidArgument, format!("zstd cannot compress the batch: {e}"))
        }),
    }
}

/// Unpacks a body of exactly `length` bytes. Never allocates more than that, whatever the input claims.
pub(crate) fn decompress(codec: Codec, packed: &[u8], length: usize) -> Result<Vec<u8>, &'static str> {
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
    };
    if body.len() == length { Ok(body) } else { Err("unpacked body has another length than its header says") }
}
