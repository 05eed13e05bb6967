//! Headers: a compressed header block (HPACK, RFC 7541) written again so that it needs no table of earlier headers, with
//! another `:authority` where that is none.
//!
//! Names and values are kept and written as they came, packed or not: only what has to be known is unpacked: the
//! authority, and the lengths of what enters the table, because they decide what leaves it. The receiver checks the
//! rest.
//!
//! (Libraries were looked at. Those that decode whole blocks build their Huffman table again for each string, or panic
//! on a number that is cut off; the table for Huffman codes is `httlib-huffman`'s.)
//!
//! Invariants: the table is what the sender believes it to be; `size` is the sum of its entries, at most `size_max`.

use bytes::Bytes;
use httlib_huffman::DecoderSpeed;
use http::uri::Authority;
use std::collections::VecDeque;

/// The table's size that a receiver begins with, and that ours keeps to.
const TABLE_BYTES_MAX: usize = 4096;
/// What an entry of the table counts besides its name and value.
const ENTRY_BYTES: usize = 32;
/// The largest block that is written: a byte can stand for a whole header of the table.
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// Stands for an authority that is none; nothing here depends on it.
const AUTHORITY: &[u8] = b"authority.invalid";
/// Number of `:authority` in the static table.
const AUTHORITY_INDEX: usize = 1;

/// Lengths of the names in the static table, which are numbered from 1.
const STATIC_NAME_BYTES: [u8; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14, 16, 13,
    12, 6, 4, 4, 6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10, 25, 17, 10, 4, 3,
    16,
];

/// Bytes that are no header block of this connection.
#[derive(Debug)]
pub(super) struct Broken;

type Result<T> = std::result::Result<T, Broken>;

/// Writes the blocks of one connection again.
#[derive(Debug)]
pub(super) struct Rewriter {
    /// The newest first.
    table: VecDeque<Entry>,
    size: usize,
    size_max: usize,
}

/// A header of the table.
#[derive(Debug)]
struct Entry {
    header: Header,
    size: usize,
}

#[derive(Clone, Debug)]
struct Header {
    name: Name,
    /// As it came, its length before it.
    value: Bytes,
    /// Whether this is an authority that is none.
    unsound: bool,
}

#[derive(Clone, Debug)]
enum Name {
    Static(usize),
    /// As it came, its length before it; and whether it is `:authority`.
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

    /// The block again, and whether an authority was replaced in it.
    ///
    /// # Errors
    /// It is no block, or too large: the table is of no use any more.
    pub(super) fn rewrite(&mut self, block: &[u8]) -> Result<(Vec<u8>, bool)> {
        let mut rest = block;
        let mut again = Vec::with_capacity(block.len() + AUTHORITY.len());
        let mut mended = false;
        while let Some(&first) = rest.first() {
            if first & 0x80 != 0 {
                let index = number(&mut rest, 7)?;
                match self.in_table(index)? {
                    // Without a value: no authority.
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

    /// A header that stands in the block; and, if asked for, how many bytes it has unpacked.
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

    /// The header of this number; None: one of the static table.
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

/// Writes a header that enters no table; `flags` can ask that it never does. True: it was replaced.
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

/// Takes a number that begins in the last `bits` of the first byte.
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
    Err(Broken) // larger than anything that can be meant
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

/// Takes a string: all of it, its length before it; and whether it is packed, and where it begins.
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

    /// What a receiver reads that has no table from earlier blocks.
    fn read(block: &[u8]) -> List {
        let mut list = Vec::new();
        Decoder::with_dynamic_size(0).decode(&mut block.to_vec(), &mut list).unwrap();
        list.into_iter().map(|(name, value, _)| (name, value)).collect()
    }

    #[test]
    fn the_static_table_s_names_are_of_these_lengths() {
        for index in 1..=61u8 {
            let name = read(&[0x80 | index]).remove(0).0;
            assert_eq!(name.len(), usize::from(STATIC_NAME_BYTES[usize::from(index) - 1]), "{index}");
        }
    }

    #[test]
    fn numbers_are_those_of_the_rfc() {
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
    fn an_authority_from_the_table_is_mended_each_time() {
        let mut rewriter = Rewriter::new();
        let bad = b"StaticLocator(len=3, first=tcp://host:1)";
        let mut block = vec![0x41, bad.len() as u8]; // with indexing, the name from the static table
        block.extend_from_slice(bad);
        for block in [&block[..], &[0xbe], &[0x81]] {
            let (again, mended) = rewriter.rewrite(block).unwrap();
            assert!(mended);
            assert_eq!(read(&again), [(b":authority".to_vec(), AUTHORITY.to_vec())]);
        }
        let (again, mended) = rewriter.rewrite(b"\x01\x09[::1]:700").unwrap();
        assert_eq!((read(&again)[0].1.as_slice(), mended), (&b"[::1]:700"[..], false));
    }

    /// A byte can stand for a header of four thousand.
    #[test]
    fn a_small_block_does_not_become_a_huge_one() {
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
        /// What comes out says the same without a table, except for authorities that are none.
        #[test]
        fn blocks_say_the_same(blocks in prop::collection::vec(prop::collection::vec(header(), 0..8), 1..12)) {
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

        /// Any bytes at all: no panic, and never much more than came in.
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
