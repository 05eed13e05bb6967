//! Batch: the unit of one append: records, codec, session stamp, checksum. Bytes only.
//!
//! The producer computes the checksum once. Leader, disk, followers and readers keep the same bytes, and the reader
//! verifies the same checksum. Layout (little-endian; `docs/format.md` has the full table):
//!
//! ```text
//! 0        4        8       12            16        24         32         34      35      36    40
//! | crc32c | length | count | body length | session | sequence | inflight | codec | flags | 0   | body …
//! ```
//!
//! body (after unpacking) = payload of all records, then `count` record ends (u32, relative to the body). The table
//! comes after the payload so that a producer copies each payload byte once.
//!
//! Must not know: blocks, files, indexes.

use crate::error::{Error, ErrorKind, Result};
use crate::record::compression;
use crate::record::compression::Codec;
use crate::record::crc::{Crc, crc32c, with_another_start};
use crate::types::{Sequence, SessionId};
use bytes::Bytes;
use std::borrow::Cow;

/// Bytes of a batch's header.
pub const BATCH_HEADER_BYTES: usize = 40;
/// The most records one batch can hold.
pub const BATCH_RECORDS_MAX: u32 = 1 << 20;
/// The format's bound on a batch, including its header, packed or unpacked. Options set lower bounds.
pub const BATCH_BYTES_MAX: usize = 256 << 20;

/// Bytes that a record takes in a batch in addition to its own: its entry in the table of ends.
pub(crate) const RECORD_OVERHEAD_BYTES: usize = 4;

/// Bodies that unpack to at most this size are unpacked when they arrive ([`Batch::decode`]); larger ones are left to
/// their readers. At this size unpacking costs 30 us (lz4) and 43 us (zstd), where an `fdatasync` takes 135; checking
/// the packed form alone costs 11 us and less than 1 (`chiplog-bench run batch_check`, on the machine of
/// `docs/performance.md`).
pub(crate) const UNPACKED_AT_ONCE_MAX: u32 = 64 << 10;

/// The reason why bytes are not a batch, block, header …; the caller knows where they came from.
pub(crate) type Malformed = &'static str;

/// The session stamp of a batch: its session, its number there, and how many earlier batches are in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) session: SessionId,
    pub(crate) sequence: Sequence,
    /// How many earlier sequence numbers had no result yet when the client made this batch. The log forgets the indexes
    /// of the numbers before those.
    pub(crate) inflight: u16,
}

/// A parsed batch header. Parsing does not verify its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) crc: u32,
    pub(crate) length: u32,
    pub(crate) count: u32,
    pub(crate) body_length: u32,
    pub(crate) stamp: Stamp,
    pub(crate) codec: Codec,
}

impl BatchHeader {
    /// Reads the header at the start of `bytes`, which may contain more than this batch. Checks every bound, so later
    /// code cannot read past the end: `length <= bytes.len()`.
    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let head: &[u8; BATCH_HEADER_BYTES] = bytes.first_chunk().ok_or("batch header is cut off")?;
        let codec = Codec::from_code(head[34]).ok_or("batch has an unknown codec")?;
        let header = Self {
            crc: u32_at(head, 0),
            length: u32_at(head, 4),
            count: u32_at(head, 8),
            body_length: u32_at(head, 12),
            stamp: Stamp {
                session: SessionId(u64_at(head, 16)),
                sequence: Sequence(u64_at(head, 24)),
                inflight: u16::from_le_bytes([head[32], head[33]]),
            },
            codec,
        };
        if head[35..40] != [0; 5] {
            return Err("batch has flags of a newer format");
        }
        let length = header.length as usize;
        if !(BATCH_HEADER_BYTES..=BATCH_BYTES_MAX.min(bytes.len())).contains(&length) {
            return Err("batch length is out of bounds");
        }
        if header.count == 0 || header.count > BATCH_RECORDS_MAX {
            return Err("batch record count is out of bounds");
        }
        let table = header.count as usize * RECORD_OVERHEAD_BYTES;
        let body = header.body_length as usize;
        if body < table || body > BATCH_BYTES_MAX {
            return Err("batch body length is out of bounds");
        }
        if codec == Codec::None && body != length - BATCH_HEADER_BYTES {
            return Err("batch body length contradicts its length");
        }
        if header.stamp.session.is_none() != (header.stamp.sequence == Sequence(0)) {
            return Err("batch has a session without a sequence, or the reverse");
        }
        Ok(header)
    }

    /// The header's bytes with a zero checksum field.
    pub(super) fn encode(&self) -> [u8; BATCH_HEADER_BYTES] {
        let mut head = [0; BATCH_HEADER_BYTES];
        head[4..8].copy_from_slice(&self.length.to_le_bytes());
        head[8..12].copy_from_slice(&self.count.to_le_bytes());
        head[12..16].copy_from_slice(&self.body_length.to_le_bytes());
        head[16..24].copy_from_slice(&self.stamp.session.0.to_le_bytes());
        head[24..32].copy_from_slice(&self.stamp.sequence.0.to_le_bytes());
        head[32..34].copy_from_slice(&self.stamp.inflight.to_le_bytes());
        head[34] = self.codec.code();
        head
    }
}

/// Parses the batch at the start of `bytes` and verifies its checksum.
pub(crate) fn verify(bytes: &[u8]) -> Result<BatchHeader, Malformed> {
    let header = BatchHeader::parse(bytes)?;
    verify_sum(&header, bytes)?;
    Ok(header)
}

/// Verifies the checksum of the batch at the start of `bytes`, whose header was parsed.
#[inline]
pub(crate) fn verify_sum(header: &BatchHeader, bytes: &[u8]) -> Result<(), Malformed> {
    let summed = bytes.get(4..header.length as usize).ok_or("batch is cut off")?;
    if crc32c(summed) == header.crc { Ok(()) } else { Err("batch checksum does not match") }
}

/// The verified batch `bytes` without its place in a session. Its new checksum follows from the old one, so that it still shows damage
/// to the body since its producer made it.
pub(crate) fn without_session(bytes: &Bytes) -> Result<Bytes, Malformed> {
    let header = BatchHeader::parse(bytes)?;
    if header.stamp == Stamp::default() {
        return Ok(bytes.clone());
    }
    let mut head = BatchHeader { stamp: Stamp::default(), ..header }.encode();
    let (before, rest) = bytes.split_at(BATCH_HEADER_BYTES);
    let crc = with_another_start(header.crc, crc32c(&before[4..]), crc32c(&head[4..]), rest.len());
    head[..4].copy_from_slice(&crc.to_le_bytes());
    Ok(Bytes::from([&head[..], rest].concat()))
}

/// The unpacked body of a verified batch: returns records by their number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body<'a> {
    payload: &'a [u8],
    table: &'a [u8],
}

impl<'a> Body<'a> {
    /// `body` is the unpacked body, `count` the header's.
    pub(crate) fn new(body: &'a [u8], count: u32) -> Result<Self, Malformed> {
        let table = (count as usize).checked_mul(RECORD_OVERHEAD_BYTES).ok_or("batch table is too large")?;
        let payload = body.len().checked_sub(table).ok_or("batch body is shorter than its table")?;
        let (payload, table) = body.split_at(payload);
        Ok(Self { payload, table })
    }

    fn end(&self, n: u32) -> Option<usize> {
        let at = n as usize * RECORD_OVERHEAD_BYTES;
        let end = self.table.get(at..at + RECORD_OVERHEAD_BYTES)?;
        Some(u32::from_le_bytes(end.try_into().ok()?) as usize)
    }

    /// The range of record `n` (from 0) in the body.
    pub(crate) fn range(&self, n: u32) -> Result<std::ops::Range<usize>, Malformed> {
        const CROOKED: Malformed = "batch's table of record ends is out of order";
        let start = if n == 0 { 0 } else { self.end(n - 1).ok_or(CROOKED)? };
        let end = self.end(n).ok_or(CROOKED)?;
        if start <= end && end <= self.payload.len() { Ok(start..end) } else { Err(CROOKED) }
    }

    /// Record `n` (from 0).
    pub(crate) fn record(&self, n: u32) -> Result<&'a [u8], Malformed> {
        Ok(&self.payload[self.range(n)?])
    }

    /// Checks the whole table: the ends are in order and the last one is at the payload's end.
    pub(crate) fn check(&self, count: u32) -> Result<(), Malformed> {
        let mut last = 0;
        for n in 0..count {
            last = self.range(n)?.end;
        }
        if last == self.payload.len() { Ok(()) } else { Err("batch payload is longer than its records") }
    }
}

/// Returns the body of the verified batch `bytes`, unpacked if it is compressed.
pub(crate) fn body<'a>(bytes: &'a [u8], header: &BatchHeader) -> Result<Cow<'a, [u8]>, Malformed> {
    let packed = bytes.get(BATCH_HEADER_BYTES..header.length as usize).ok_or("batch is cut off")?;
    match header.codec {
        Codec::None => Ok(Cow::Borrowed(packed)),
        codec => compression::decompress(codec, packed, header.body_length as usize).map(Cow::Owned),
    }
}

/// The frame around one uncompressed record: the bytes before and after it. With it an append copies the caller's slice
/// to the writer's buffer once.
pub(crate) struct SingleFrame {
    pub(crate) head: [u8; BATCH_HEADER_BYTES],
    pub(crate) tail: [u8; RECORD_OVERHEAD_BYTES],
    pub(crate) header: BatchHeader,
}

impl SingleFrame {
    /// The caller has checked that `record` is within the limits, so all lengths fit `u32`.
    pub(crate) fn new(record: &[u8], stamp: Stamp) -> Self {
        assert!(record.len() <= BATCH_BYTES_MAX - BATCH_HEADER_BYTES - RECORD_OVERHEAD_BYTES);
        let tail = (record.len() as u32).to_le_bytes();
        let body_length = (record.len() + tail.len()) as u32;
        let length = body_length + BATCH_HEADER_BYTES as u32;
        let header = BatchHeader { crc: 0, length, count: 1, body_length, stamp, codec: Codec::None };
        let mut head = header.encode();
        let crc = Crc::new().add(&head[4..]).add(record).add(&tail).sum();
        head[..4].copy_from_slice(&crc.to_le_bytes());
        Self { head, tail, header: BatchHeader { crc, ..header } }
    }
}

/// One or more records, encoded, with a checksum: the unit of appending. A batch becomes durable as a whole or not at
/// all. Cheap to clone, because the bytes are shared. `Send + Sync`.
///
/// ```
/// use chiplog::{Batch, BatchBuilder};
/// let mut builder = BatchBuilder::new();
/// builder.push(b"one")?.push(b"two")?;
/// let batch = builder.build()?;
/// assert_eq!(batch.count(), 2);
/// // Bytes from another process are checked when they are decoded.
/// let same = Batch::decode(batch.as_bytes().clone())?;
/// assert_eq!(same.records()?, [b"one".to_vec(), b"two".to_vec()]);
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Batch {
    bytes: Bytes,
    header: BatchHeader,
    /// The size of its largest record in bytes, if known.
    largest: Option<u32>,
}

impl Batch {
    /// Decodes a batch from bytes, for example from another process. Checks the checksum and every bound. Also checks
    /// the table of record ends if the body is not compressed or unpacks to at most 64 KiB. Of a larger body only the
    /// packed form is checked, so a reader can still find it [`Undecodable`](ErrorKind::Undecodable).
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not exactly one batch with the right checksum. `InvalidArgument` if they are, but the
    /// body does not unpack as the header says: its producer is wrong.
    pub fn decode(bytes: Bytes) -> Result<Self> {
        let batch = Self::stored(bytes)?;
        batch.check_body().map_err(|why| {
            let what = format!(
                "a batch of {} records cannot be unpacked, although its checksum is right: {why}; fix the program that built it",
                batch.header.count
            );
            Error::new(ErrorKind::InvalidArgument, what)
        })?;
        Ok(batch)
    }

    /// Decodes bytes that a log stores. Does not check whether the body unpacks.
    pub(crate) fn stored(bytes: Bytes) -> Result<Self> {
        let header = match verify(&bytes) {
            Ok(header) if header.length as usize != bytes.len() => Err("bytes follow the batch"),
            checked => checked,
        };
        let header = header.map_err(|e| Error::new(ErrorKind::Corrupt, format!("not a batch: {e}")))?;
        Ok(Self { bytes, header, largest: None })
    }

    /// Checks whether readers can unpack the body, as far as that is cheap.
    fn check_body(&self) -> Result<(), Malformed> {
        let header = &self.header;
        let packed = &self.bytes[BATCH_HEADER_BYTES..];
        if header.codec != Codec::None {
            compression::check_frame(header.codec, packed, header.body_length as usize)?;
            if header.body_length > UNPACKED_AT_ONCE_MAX {
                return Ok(());
            }
        }
        Body::new(&body(&self.bytes, header)?, header.count)?.check(header.count)
    }

    /// The encoded bytes, as written to the file and sent over the network.
    pub fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// How many records it contains; at least 1.
    pub fn count(&self) -> u32 {
        self.header.count
    }

    /// The compression of its body.
    pub fn codec(&self) -> Codec {
        self.header.codec
    }

    /// Its session and sequence number, if it belongs to a session.
    pub fn session(&self) -> Option<(SessionId, Sequence)> {
        let Stamp { session, sequence, .. } = self.header.stamp;
        (!session.is_none()).then_some((session, sequence))
    }

    /// Returns copies of its records. For looking into a batch; readers of a log return slices instead.
    ///
    /// # Errors
    /// `Undecodable` if a compressed body does not unpack as the header says.
    pub fn records(&self) -> Result<Vec<Vec<u8>>> {
        let records = || {
            let body = body(&self.bytes, &self.header)?;
            let body = Body::new(&body, self.header.count)?;
            body.check(self.header.count)?;
            (0..self.header.count)
                .map(|n| body.record(n).map(<[u8]>::to_vec))
                .collect::<Result<_, Malformed>>()
        };
        records().map_err(|why: Malformed| {
            let what = format!("a batch of {} records does not unpack: {why}", self.header.count);
            Error::new(ErrorKind::Undecodable, what)
        })
    }

    /// The bytes of memory that a reader needs to unpack it.
    pub(crate) fn unpacked_bytes(&self) -> usize {
        BATCH_HEADER_BYTES + self.header.body_length as usize
    }

    /// The bytes that an append has to unpack to check for records larger than `record_bytes_max`. 0 if the batch is
    /// not compressed, is too small for such a record, or is [measured](Self::measure).
    pub fn unmeasured_bytes(&self, record_bytes_max: u32) -> usize {
        let is_known = self.header.codec == Codec::None || self.largest.is_some();
        if is_known || self.payload_bytes() <= record_bytes_max {
            0
        } else {
            self.header.body_length as usize
        }
    }

    /// Measures the largest record, so that no append has to unpack the batch. For servers; run it on a thread that it
    /// may block, for about 0.4 ms a MiB.
    ///
    /// # Errors
    /// `InvalidArgument`: the body does not unpack as the header says.
    pub fn measure(&mut self) -> Result<()> {
        self.largest = Some(self.largest_record()?);
        Ok(())
    }

    fn payload_bytes(&self) -> u32 {
        self.header.body_length - self.header.count * RECORD_OVERHEAD_BYTES as u32
    }

    /// Whether no record is larger than `max`. Looks at single records only if the whole payload is larger than that.
    pub(crate) fn records_within(&self, max: u32) -> Result<bool> {
        if self.payload_bytes() <= max {
            return Ok(true);
        }
        let largest = self.largest.map_or_else(|| self.largest_record(), Ok)?;
        Ok(largest <= max)
    }

    /// The size of the largest record in bytes.
    fn largest_record(&self) -> Result<u32> {
        let count = self.header.count;
        let largest = || {
            let body = body(&self.bytes, &self.header)?;
            let body = Body::new(&body, count)?;
            body.check(count)?;
            let mut largest = 0;
            for n in 0..count {
                largest = largest.max(body.range(n)?.len() as u32);
            }
            Ok(largest)
        };
        largest().map_err(|why: Malformed| {
            let what =
                format!("a batch of {count} records does not unpack: {why}; fix the program that built it");
            Error::new(ErrorKind::InvalidArgument, what)
        })
    }

    pub(crate) fn header(&self) -> &BatchHeader {
        &self.header
    }
}

/// Collects records into a [`Batch`]. Each payload byte is copied once, into the batch.
///
/// ```
/// use chiplog::{BatchBuilder, Codec};
/// let mut builder = BatchBuilder::new();
/// builder.codec(Codec::Zstd);
/// for i in 0..1000 {
///     builder.push(format!("record {i}").as_bytes())?;
/// }
/// assert!(builder.build()?.as_bytes().len() < 4000);
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct BatchBuilder {
    /// Space for the header, then the payload so far. Empty until the first push.
    bytes: Vec<u8>,
    ends: Vec<u8>,
    count: u32,
    /// The size of the largest record in bytes.
    largest: u32,
    codec: Codec,
    stamp: Stamp,
}

impl BatchBuilder {
    /// An empty batch, uncompressed and without a session.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the compression.
    pub fn codec(&mut self, codec: Codec) -> &mut Self {
        self.codec = codec;
        self
    }

    /// Stamps the batch as number `sequence` (from 1) of `session`. `inflight` is how many earlier sequence numbers
    /// have no result yet: the log remembers their indexes and forgets older ones.
    pub fn session(&mut self, session: SessionId, sequence: Sequence, inflight: u16) -> &mut Self {
        self.stamp = Stamp { session, sequence, inflight };
        self
    }

    /// Adds a record; it may be empty.
    ///
    /// # Errors
    /// `TooLarge` if the batch would exceed [`BATCH_RECORDS_MAX`] or [`BATCH_BYTES_MAX`]. The record is then not added,
    /// and the batch is unchanged.
    pub fn push(&mut self, record: &[u8]) -> Result<&mut Self> {
        if self.count == BATCH_RECORDS_MAX {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("a batch holds at most {BATCH_RECORDS_MAX} records"),
            ));
        }
        let after = self.encoded_bytes() + record.len() + RECORD_OVERHEAD_BYTES;
        if after > BATCH_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("a batch is at most {BATCH_BYTES_MAX} bytes; with this record it would be {after}"),
            ));
        }
        if self.bytes.is_empty() {
            self.bytes.resize(BATCH_HEADER_BYTES, 0);
        }
        self.bytes.extend_from_slice(record);
        let end = (self.bytes.len() - BATCH_HEADER_BYTES) as u32;
        self.ends.extend_from_slice(&end.to_le_bytes());
        self.largest = self.largest.max(record.len() as u32);
        self.count += 1;
        Ok(self)
    }

    /// How many records were added so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether it contains no record yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The batch's size in bytes if it were built now without compression.
    pub fn encoded_bytes(&self) -> usize {
        self.bytes.len().max(BATCH_HEADER_BYTES) + self.ends.len()
    }

    /// Encodes the batch with its checksum. A body that compression does not make smaller is stored uncompressed.
    /// Afterwards the builder is empty; its codec and session stamp stay.
    ///
    /// # Errors
    /// `InvalidArgument` for a batch without records, or with a session but no sequence (or the reverse).
    pub fn build(&mut self) -> Result<Batch> {
        if self.count == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "a batch needs at least one record"));
        }
        if self.stamp.session.is_none() != (self.stamp.sequence == Sequence(0)) {
            let why = "a session's sequence numbers start at 1, and a batch without a session has none";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.append(&mut self.ends);
        let (count, largest) = (std::mem::take(&mut self.count), std::mem::take(&mut self.largest));
        let body_length = (bytes.len() - BATCH_HEADER_BYTES) as u32;
        let mut codec = Codec::None;
        if self.codec != Codec::None {
            let packed = compression::compress(self.codec, &bytes[BATCH_HEADER_BYTES..])?;
            if packed.len() < body_length as usize {
                codec = self.codec;
                bytes.truncate(BATCH_HEADER_BYTES);
                bytes.extend_from_slice(&packed);
            }
        }
        let length = bytes.len() as u32;
        let mut header = BatchHeader { crc: 0, length, count, body_length, stamp: self.stamp, codec };
        let head = header.encode();
        header.crc = Crc::new().add(&head[4..]).add(&bytes[BATCH_HEADER_BYTES..]).sum();
        bytes[..BATCH_HEADER_BYTES].copy_from_slice(&head);
        bytes[..4].copy_from_slice(&header.crc.to_le_bytes());
        Ok(Batch { bytes: Bytes::from(bytes), header, largest: Some(largest) })
    }
}

/// `bytes[at..at + 4]` as a number. Callers pass arrays of known length.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// `bytes[at..at + 8]` as a number. Callers pass arrays of known length.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(codec: Codec) -> Batch {
        let mut b = BatchBuilder::new();
        b.codec(codec).session(SessionId(7), Sequence(3), 2);
        b.push(b"alpha").unwrap().push(b"").unwrap().push(&[b'x'; 300]).unwrap();
        b.build().unwrap()
    }

    #[test]
    fn records_survive_every_codec() {
        for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
            let batch = sample(codec);
            assert_eq!(batch.codec(), codec);
            let again = Batch::decode(batch.as_bytes().clone()).unwrap();
            assert_eq!(again.records().unwrap(), [b"alpha".to_vec(), vec![], vec![b'x'; 300]]);
            assert_eq!(again.session(), Some((SessionId(7), Sequence(3))));
        }
    }

    #[test]
    fn measure_finds_the_largest_record_once() {
        for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
            let built = sample(codec);
            let mut decoded = Batch::decode(built.as_bytes().clone()).unwrap();
            let unpacked = if codec == Codec::None { 0 } else { built.header.body_length as usize };
            // A record of 300 bytes, in a payload of 305.
            assert_eq!([304, 305].map(|max| decoded.unmeasured_bytes(max)), [unpacked, 0]);
            assert_eq!(built.unmeasured_bytes(1), 0);
            for batch in [&built, &decoded] {
                assert_eq!([299, 300].map(|max| batch.records_within(max).unwrap()), [false, true]);
            }
            decoded.measure().unwrap();
            assert_eq!((decoded.largest, decoded.unmeasured_bytes(1)), (Some(300), 0));
        }
    }

    /// A batch from another program, whose checksum is right and whose body does not match its header.
    #[test]
    fn bodies_that_do_not_unpack_are_refused() {
        let packed = compression::compress(Codec::Lz4, &[0; 500]).unwrap();
        let cases: [(Codec, u32, u32, &[u8]); 6] = [
            (Codec::Lz4, 1, 20, b"garbage of no compressor"),
            (Codec::Zstd, 1, 20, b"garbage of no compressor"),
            (Codec::Lz4, 1, 499, &packed),
            (Codec::Lz4, 1, 500, &packed),
            (Codec::Lz4, 1, 200 << 20, &packed),
            (Codec::Zstd, 1, 200 << 20, &packed),
        ];
        for (codec, count, body_length, packed) in cases {
            let length = (BATCH_HEADER_BYTES + packed.len()) as u32;
            let header = BatchHeader { crc: 0, length, count, body_length, stamp: Stamp::default(), codec };
            let mut bytes = [&header.encode()[..], packed].concat();
            let crc = crc32c(&bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            let error = Batch::decode(bytes.clone().into()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            let stored = Batch::stored(bytes.into()).unwrap();
            assert_eq!(stored.records().unwrap_err().kind(), ErrorKind::Undecodable);
        }
    }

    #[test]
    fn incompressible_bodies_stay_plain() {
        let mut b = BatchBuilder::new();
        b.codec(Codec::Zstd).push(b"q").unwrap();
        assert_eq!(b.build().unwrap().codec(), Codec::None);
    }

    #[test]
    fn single_frame_equals_the_builder_s_encoding() {
        let stamp = Stamp { session: SessionId(5), sequence: Sequence(1), inflight: 0 };
        let frame = SingleFrame::new(b"record", stamp);
        let bytes = [&frame.head[..], b"record", &frame.tail].concat();
        let mut b = BatchBuilder::new();
        b.session(SessionId(5), Sequence(1), 0).push(b"record").unwrap();
        assert_eq!(b.build().unwrap().as_bytes(), &bytes);
        assert_eq!(frame.header.crc, verify(&bytes).unwrap().crc);
    }

    /// Every flipped bit of a batch is detected, and never causes a panic.
    #[test]
    fn every_bit_flip_is_detected() {
        for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
            let good = sample(codec).as_bytes().to_vec();
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(Batch::decode(bad.into()).is_err(), "bit {bit} of {codec:?}");
            }
        }
    }

    #[test]
    fn limits_and_misuse_have_named_errors() {
        assert_eq!(BatchBuilder::new().build().unwrap_err().kind(), ErrorKind::InvalidArgument);
        let mut b = BatchBuilder::new();
        b.session(SessionId(1), Sequence(0), 0).push(b"x").unwrap();
        assert_eq!(b.build().unwrap_err().kind(), ErrorKind::InvalidArgument);
        let mut b = BatchBuilder::new();
        for _ in 0..BATCH_RECORDS_MAX {
            b.push(b"").unwrap();
        }
        assert_eq!(b.push(b"").unwrap_err().kind(), ErrorKind::TooLarge);
        assert_eq!(b.build().unwrap().count(), BATCH_RECORDS_MAX);
    }
}
