//! The contents of a simulated file, as sectors that images share until one is written; and the damage that a broken
//! device does to them.
//!
//! It does not know names, syncs or crashes. Invariant: bytes of the last sector beyond the file's length are zero.

use crate::disk::SECTOR_BYTES;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// 512 bytes; `None` is all zeros. Shared between images, stored with its hash.
#[derive(Clone, Debug, Default)]
pub(super) struct Sector(Option<Arc<(u64, [u8; SECTOR_BYTES])>>);

static ZEROS: [u8; SECTOR_BYTES] = [0; SECTOR_BYTES];

impl Sector {
    fn new(bytes: &[u8; SECTOR_BYTES]) -> Self {
        if *bytes == ZEROS {
            return Self(None);
        }
        Self(Some(Arc::new((mix(bytes), *bytes))))
    }

    fn bytes(&self) -> &[u8; SECTOR_BYTES] {
        self.0.as_ref().map_or(&ZEROS, |s| &s.1)
    }

    fn hash(&self) -> u64 {
        self.0.as_ref().map_or(0, |s| s.0)
    }
}

/// A fast hash: every simulated write computes one per sector.
fn mix(bytes: &[u8; SECTOR_BYTES]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(0x243f_6a88_85a3_08d3, |hash: u64, word| {
        (hash.rotate_left(29) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

impl PartialEq for Sector {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || (a.0 == b.0 && a.1 == b.1),
            _ => false,
        }
    }
}

/// The contents of one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FileImage {
    pub(super) len: u64,
    pub(super) sectors: Vec<Sector>,
}

impl FileImage {
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let mut file = Self::default();
        file.resize(bytes.len() as u64);
        for (sector, patch) in patches(0, bytes) {
            file.sectors[sector] = patch.over(&Sector::default());
        }
        file
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Copies the bytes from `offset` on; false if the file ends before.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> bool {
        match offset.checked_add(buf.len() as u64) {
            Some(end) if end <= self.len => {}
            _ => return false,
        }
        let (mut at, mut rest) = (offset as usize, buf);
        while !rest.is_empty() {
            let within = at % SECTOR_BYTES;
            let n = rest.len().min(SECTOR_BYTES - within);
            let (now, later) = rest.split_at_mut(n);
            now.copy_from_slice(&self.sectors[at / SECTOR_BYTES].bytes()[within..within + n]);
            (at, rest) = (at + n, later);
        }
        true
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.sectors.iter().flat_map(|s| *s.bytes()).collect();
        bytes.truncate(self.len as usize);
        bytes
    }

    /// Sets the length. Bytes beyond a shorter length are lost; added bytes are zero.
    pub(super) fn resize(&mut self, len: u64) {
        self.sectors.resize((len as usize).div_ceil(SECTOR_BYTES), Sector::default());
        self.len = len;
        self.clear_beyond_end();
    }

    pub(super) fn clear_beyond_end(&mut self) {
        let within = self.len as usize % SECTOR_BYTES;
        if let Some(last) = self.sectors.last_mut()
            && within != 0
            && last.bytes()[within..].iter().any(|b| *b != 0)
        {
            let mut bytes = *last.bytes();
            bytes[within..].fill(0);
            *last = Sector::new(&bytes);
        }
    }

    pub(super) fn hash_into(&self, hasher: &mut impl Hasher) {
        self.len.hash(hasher);
        for (n, sector) in self.sectors.iter().enumerate() {
            if sector.0.is_some() {
                (n, sector.hash()).hash(hasher);
            }
        }
    }

    /// Changes the contents as a broken device would. False if the location is not in the file.
    pub(super) fn damage(&mut self, damage: &Damage) -> bool {
        match *damage {
            Damage::FlipBit { bit } => {
                if bit / 8 >= self.len {
                    return false;
                }
                let at = (bit / 8) as usize;
                let mut bytes = *self.sectors[at / SECTOR_BYTES].bytes();
                bytes[at % SECTOR_BYTES] ^= 1 << (bit % 8);
                self.sectors[at / SECTOR_BYTES] = Sector::new(&bytes);
            }
            Damage::SwapSectors { a, b } => {
                if a.max(b) >= self.sectors.len() {
                    return false;
                }
                self.sectors.swap(a, b);
            }
            Damage::MisdirectSector { from, to } => {
                if from.max(to) >= self.sectors.len() {
                    return false;
                }
                self.sectors[to] = self.sectors[from].clone();
            }
            Damage::ZeroSector { sector } => {
                if sector >= self.sectors.len() {
                    return false;
                }
                self.sectors[sector] = Sector::default();
            }
            Damage::Shorten { len } => {
                if len > self.len {
                    return false;
                }
                self.resize(len);
            }
            Damage::Overwrite { offset, ref bytes } => {
                if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > self.len) {
                    return false;
                }
                for (sector, patch) in patches(offset, bytes) {
                    self.sectors[sector] = patch.over(&self.sectors[sector]);
                }
            }
        }
        self.clear_beyond_end();
        true
    }
}

/// Damage that a broken device does to a file's contents.
///
/// ```
/// use chiplog::disk::sim::{Damage, Image};
/// let mut image = Image::default();
/// image.insert("a", b"\x00");
/// assert!(image.damage("a", &Damage::FlipBit { bit: 3 }));
/// assert_eq!(image.file("a"), Some(vec![8]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Damage {
    /// Flips one bit: bit `bit % 8` of byte `bit / 8`.
    FlipBit {
        /// The bit's number in the file.
        bit: u64,
    },
    /// Swaps two sectors.
    SwapSectors {
        /// Number of a sector.
        a: usize,
        /// Number of the other sector.
        b: usize,
    },
    /// Writes one sector's bytes over another one as well.
    MisdirectSector {
        /// The sector that the bytes belong to.
        from: usize,
        /// The sector that they overwrite.
        to: usize,
    },
    /// Replaces a sector with zeros.
    ZeroSector {
        /// Number of the sector.
        sector: usize,
    },
    /// Cuts the file to this length.
    Shorten {
        /// The new length in bytes.
        len: u64,
    },
    /// Overwrites bytes.
    Overwrite {
        /// The offset of the first one.
        offset: u64,
        /// The new bytes.
        bytes: Vec<u8>,
    },
}

/// The part of a write that is inside one sector.
pub(super) struct Patch<'a> {
    within: usize,
    bytes: &'a [u8],
}

impl Patch<'_> {
    pub(super) fn over(&self, old: &Sector) -> Sector {
        let mut bytes = *old.bytes();
        bytes[self.within..self.within + self.bytes.len()].copy_from_slice(self.bytes);
        Sector::new(&bytes)
    }
}

/// Splits a write at the sectors' boundaries.
pub(super) fn patches(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (usize, Patch<'_>)> {
    let (mut at, mut rest) = (offset as usize, bytes);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let within = at % SECTOR_BYTES;
        let (now, later) = rest.split_at(rest.len().min(SECTOR_BYTES - within));
        let sector = at / SECTOR_BYTES;
        (at, rest) = (at + now.len(), later);
        Some((sector, Patch { within, bytes: now }))
    })
}
