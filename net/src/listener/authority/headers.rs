//! Headers: rewrites a compressed header block (HPACK, RFC 7541) so that it needs no table of earlier headers, and
//! replaces an invalid `:authority`.
//!
//! Names and values are kept and written as they were received, compressed or not. Only two things are decompressed:
//! the authority, and the lengths of entries of the table, because they decide which entries leave it. The receiver
//! checks the rest.
//!
//! (Existing libraries do not fit: those that decode whole blocks rebuild their Huffman table for each string, or panic
//! on a truncated number. The table of Huffman codes is `httlib-huffman`'s.)
//!
//! Invariants: the table equals the sender's; `size` is the sum of its entries, at most `size_max`.

use bytes::Bytes;
use httlib_huffman::DecoderSpeed;
use http::uri::Authority;
use std::collections::VecDeque;

/// The initial table size of a receiver, which this one keeps.
const TABLE_BYTES_MAX: usize = 4096;
/// The overhead of an entry in the table's size.
const ENTRY_BYTES: usize = 32;
/// The largest block that is written: one byte can stand for a whole header of the table.
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// Replaces an invalid authority; nothing here depends on its value.
const AUTHORITY: &[u8] = b"authority.invalid";
/// The index of `:authority` in the static table.
const AUTHORITY_INDEX: usize = 1;

/// The lengths of the names in the static table, which are numbered from 1.
const STATIC_NAME_BYTES: [u8; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14, 16, 13,
    12, 6, 4, 4, 6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10, 25, 17, 10, 4, 3,
    16,
];

/// The error for bytes that are not a header block of this connection.
#[derive(Debug)]
pub(super) struct Broken;

type Result<T> = std::result::Result<T, Broken>;

/// Rewrites the blocks of one connection.
#[derive(Debug)]
pub(super) struct Rewriter {
    /// The newest entry first.
    table: VecDeque<Entry>,
    size: usize,
    size_max: usize,
}

/// A header in the table.
#[derive(Debug)]
struct Entry {
    header: Header,
    size: usize,
}

#[derive(Clone, Debug)]
struct Header {
    name: Name,
    /// As received, with its length in front.
    value: Bytes,
    /// Whether this is an invalid authority.
    unsound: bool,
}

#[derive(Clone, Debug)]
enum Name {
    Static(usize),
    /// As received, with its length in front; and whether it is `:authority`.
    Literal(Bytes, bool, usize),
}

impl Name {
    fn is_authority(&self) -> bool {
        matches!(self, Self::Static(AUTHORITY_INDEX) | Self::Literal(_, true, _))
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Static(index) => STATIC_NAME_BYTES[*index - 1].into(),
            Self::Literal(_, _, bytes) => *bytes,
        }
    }
}

impl Rewriter {
    pub(super) fn new() -> Self {
        Self { table: VecDeque::new(), size: 0, size_max: TABLE_BYTES_MAX }
    }

    /// Returns the rewritten block, and whether an authority was replaced in it.
    ///
    /// # Errors
    /// It is not a valid block, or too large: the table cannot be used any more.
    pub(super) fn rewrite(&mut self, block: &[u8]) -> Result<(Vec<u8>, bool)> {
        let mut rest = block;
        let mut again = Vec::with_capacity(block.len() + AUTHORITY.len());
        let mut mended = false;
        while let Some(&first) = rest.first() {
            if first & 0x80 != 0 {
                let index = number(&mut rest, 7)?;
                match self.in_table(index)? {
                    // Without a value: an invalid authority.
                    None if index == AUTHORITY_INDEX => {
                        let name = Name::Static(AUTHORITY_INDEX);
                        let header = Header { name, value: Bytes::new(), unsound: true };
                        mended |= write(&mut again, &header, 0);
                    }
                    None => write_number(&mut again, 0x80, 7, index),
                    Some(header) => mended |= write(&mut again, header, 0),
                }
            } else if first & 0xe0 == 0x20 {
                let size = number(&mut rest, 5)?;
                if size > TABLE_BYTES_MAX {
                    return Err(Broken);
                }
                self.size_max = size;
                self.evict();
            } else {
                let enters = first & 0x40 != 0;
                let (header, bytes) = self.literal(&mut rest, if enters { 6 } else { 4 }, enters)?;
                mended |= write(&mut again, &header, if enters { 0 } else { first & 0x10 });
                if enters {
                    self.enter(header, bytes);
                }
            }
            if again.len() > BLOCK_BYTES_MAX {
                return Err(Broken);
            }
        }
        Ok((again, mended))
    }

    /// Parses a literal header; if `measure`, also returns its decompressed size.
    fn literal(&self, rest: &mut &[u8], bits: u32, measure: bool) -> Result<(Header, usize)> {
        let index = number(rest, bits)?;
        let name = match index {
            0 => {
                let (raw, packed) = string(rest)?;
                let name = unpack(packed, raw)?;
                let raw = Bytes::copy_from_slice(raw);
                Name::Literal(raw, name.as_ref() == b":authority", name.as_ref().len())
            }
            _ => match self.in_table(index)? {
                None => Name::Static(index),
                Some(header) => header.name.clone(),
            },
        };
        let (raw, packed) = string(rest)?;
        let (mut bytes, mut unsound) = (0, false);
        if measure || name.is_authority() {
            let value = unpack(packed, raw)?;
            bytes = name.bytes() + value.as_ref().len();
            unsound = name.is_authority() && Authority::try_from(value.as_ref()).is_err();
        }
        Ok((Header { name, value: Bytes::copy_from_slice(raw), unsound }, bytes))
    }

    /// The header with this number; None: it is in the static table.
    fn in_table(&self, index: usize) -> Result<Option<&Header>> {
        if index <= STATIC_NAME_BYTES.len() {
            return if index == 0 { Err(Broken) } else { Ok(None) };
        }
        let entry = self.table.get(index - STATIC_NAME_BYTES.len() - 1);
        entry.map(|entry| Some(&entry.header)).ok_or(Broken)
    }

    fn enter(&mut self, header: Header, bytes: usize) {
        let size = bytes + ENTRY_BYTES;
        self.size += size;
        self.table.push_front(Entry { header, size });
        self.evict();
    }

    fn evict(&mut self) {
        while self.size > self.size_max {
            let Some(oldest) = self.table.pop_back() else { return };
            self.size -= oldest.size;
        }
    }
}

/// Writes a header that enters no table; `flags` can demand that it never does. Returns whether it was replaced.
fn write(block: &mut Vec<u8>, header: &Header, flags: u8) -> bool {
    match &header.name {
        Name::Static(index) => write_number(block, flags, 4, *index),
        Name::Literal(raw, ..) => {
            block.push(flags);
            block.extend_from_slice(raw);
        }
    }
    if header.unsound {
        write_number(block, 0, 7, AUTHORITY.len());
        block.extend_from_slice(AUTHORITY);
    } else {
        block.extend_from_slice(&header.value);
    }
    header.unsound
}

/// Parses a number that starts in the last `bits` of the first byte.
fn number(rest: &mut &[u8], bits: u32) -> Result<usize> {
    let mask = (1 << bits) - 1;
    let (first, more) = rest.split_first().ok_or(Broken)?;
    *rest = more;
    let mut value = usize::from(first & mask as u8);
    if value < mask {
        return Ok(value);
    }
    for shift in [0, 7, 14, 21] {
        let (next, more) = rest.split_first().ok_or(Broken)?;
        *rest = more;
        value += usize::from(next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Broken) // larger than any valid value
}

fn write_number(block: &mut Vec<u8>, flags: u8, bits: u32, value: usize) {
    let mask = (1 << bits) - 1;
    if value < mask {
        return block.push(flags | value as u8);
    }
    block.push(flags | mask as u8);
    let mut left = value - mask;
    while left >= 0x80 {
        block.push(left as u8 | 0x80);
        left >>= 7;
    }
    block.push(left as u8);
}

/// Parses a string: returns all of it with its length in front, whether it is compressed, and where it starts.
fn string<'a>(rest: &mut &'a [u8]) -> Result<(&'a [u8], (bool, usize))> {
    let all = *rest;
    let packed = all.first().ok_or(Broken)? & 0x80 != 0;
    let length = number(rest, 7)?;
    let start = all.len() - rest.len();
    *rest = rest.get(length..).ok_or(Broken)?;
    Ok((&all[..start + length], (packed, start)))
}

/// The bytes of a string.
enum Unpacked<'a> {
    Plain(&'a [u8]),
    Packed(Vec<u8>),
}

impl AsRef<[u8]> for Unpacked<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Packed(bytes) => bytes,
        }
    }
}

fn unpack((packed, start): (bool, usize), raw: &[u8]) -> Result<Unpacked<'_>> {
    let bytes = &raw[start..];
    if !packed {
        return Ok(Unpacked::Plain(bytes));
    }
    let mut plain = Vec::with_capacity(bytes.len() * 2);
    httlib_huffman::decode(bytes, &mut plain, DecoderSpeed::FourBits).map_err(|_| Broken)?;
    Ok(Unpacked::Packed(plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use httlib_hpack::{Decoder, Encoder};
    use proptest::prelude::*;

    type List = Vec<(Vec<u8>, Vec<u8>)>;

    /// The headers that a receiver without an earlier table reads.
    fn read(block: &[u8]) -> List {
        let mut list = Vec::new();
        Decoder::with_dynamic_size(0).decode(&mut block.to_vec(), &mut list).unwrap();
        list.into_iter().map(|(name, value, _)| (name, value)).collect()
    }

    #[test]
    fn static_table_name_lengths_are_right() {
        for index in 1..=61u8 {
            let name = read(&[0x80 | index]).remove(0).0;
            assert_eq!(name.len(), usize::from(STATIC_NAME_BYTES[usize::from(index) - 1]), "{index}");
        }
    }

    #[test]
    fn numbers_match_the_rfc() {
        for (bytes, bits, value) in [(&[10][..], 5, 10), (&[31, 154, 10], 5, 1337), (&[42], 8, 42)] {
            assert_eq!(number(&mut { bytes }, bits).unwrap(), value);
            let mut written = Vec::new();
            write_number(&mut written, 0, bits, value);
            assert_eq!(written, bytes);
        }
        assert!(number(&mut &[31, 154][..], 5).is_err());
        assert!(number(&mut &[31, 255, 255, 255, 255, 255, 1][..], 5).is_err());
    }

    #[test]
    fn invalid_authority_in_the_table_is_replaced_each_time() {
        let mut rewriter = Rewriter::new();
        let bad = b"StaticLocator(len=3, first=tcp://host:1)";
        let mut block = vec![0x41, bad.len() as u8]; // indexed, with the name from the static table
        block.extend_from_slice(bad);
        for block in [&block[..], &[0xbe], &[0x81]] {
            let (again, mended) = rewriter.rewrite(block).unwrap();
            assert!(mended);
            assert_eq!(read(&again), [(b":authority".to_vec(), AUTHORITY.to_vec())]);
        }
        let (again, mended) = rewriter.rewrite(b"\x01\x09[::1]:700").unwrap();
        assert_eq!((read(&again)[0].1.as_slice(), mended), (&b"[::1]:700"[..], false));
    }

    /// One byte can stand for a header of four thousand bytes.
    #[test]
    fn small_block_does_not_grow_huge() {
        let mut rewriter = Rewriter::new();
        let mut block = vec![0x40, 1, b'x', 0x7f, 0xa1, 0x1e]; // 4000 bytes
        block.extend_from_slice(&[b'y'; 4000]);
        block.extend_from_slice(&[0xbe; 1000]);
        assert!(rewriter.rewrite(&block).is_err());
    }

    fn header() -> impl Strategy<Value = (Vec<u8>, Vec<u8>, u8)> {
        let name = prop_oneof![
            Just(b":authority".to_vec()),
            Just(b":path".to_vec()),
            Just(b"grpc-timeout".to_vec()),
            "[a-z-]{1,40}".prop_map(String::into_bytes),
        ];
        let value = prop_oneof![
            "[a-z0-9.:/ (),=]{0,60}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..900),
        ];
        let how = prop::sample::select(vec![0, Encoder::WITH_INDEXING, Encoder::NEVER_INDEXED]);
        (name, value, how, any::<bool>(), any::<bool>()).prop_map(
            |(name, value, how, pack_name, pack_value)| {
                let pack_name = if pack_name { Encoder::HUFFMAN_NAME } else { 0 };
                let pack_value = if pack_value { Encoder::HUFFMAN_VALUE } else { 0 };
                (name, value, how | pack_name | pack_value | Encoder::BEST_FORMAT)
            },
        )
    }

    proptest! {
        /// The output has the same headers without a table, except for invalid authorities.
        #[test]
        fn rewritten_blocks_have_the_same_headers(blocks in prop::collection::vec(prop::collection::vec(header(), 0..8), 1..12)) {
            let (mut encoder, mut rewriter) = (Encoder::with_dynamic_size(4096), Rewriter::new());
            for headers in blocks {
                let mut block = Vec::new();
                for header in &headers {
                    encoder.encode(header.clone(), &mut block).unwrap();
                }
                let (again, mended) = rewriter.rewrite(&block).unwrap();
                let unsound = |(name, value): &(Vec<u8>, Vec<u8>)| {
                    name == b":authority" && Authority::try_from(&value[..]).is_err()
                };
                let sent: List = headers.into_iter().map(|(name, value, _)| (name, value)).collect();
                prop_assert_eq!(mended, sent.iter().any(unsound));
                let wanted: List = sent.into_iter().map(|header| {
                    if unsound(&header) { (header.0, AUTHORITY.to_vec()) } else { header }
                }).collect();
                prop_assert_eq!(read(&again), wanted);
            }
        }

        /// Arbitrary bytes: no panic, and the output is never much larger than the input.
        #[test]
        fn any_bytes(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..5)) {
            let mut rewriter = Rewriter::new();
            for block in blocks {
                if let Ok((again, _)) = rewriter.rewrite(&block) {
                    prop_assert!(again.len() <= BLOCK_BYTES_MAX);
                }
                prop_assert!(rewriter.size <= rewriter.size_max);
                prop_assert_eq!(rewriter.table.iter().map(|e| e.size).sum::<usize>(), rewriter.size);
            }
        }
    }
}
