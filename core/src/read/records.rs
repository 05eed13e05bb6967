//! Records as readers return them: one at a time, or in the batches in which they were appended, unpacked or as stored
//! in the log.
//!
//! Zero copies for uncompressed batches: a record is a slice of the mapping, and holding it keeps the segment.
//!
//! Must not know: readers, positions.

use crate::error::{Error, ErrorKind, Result};
use crate::record::batch;
use crate::record::batch::{BATCH_HEADER_BYTES, Body};
use crate::record::compression::Codec;
use crate::store::read::block_reader::Slice;
use crate::types::{Index, Timestamp};
use bytes::Bytes;

/// A record, borrowed from the reader or batch that returned it.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// log.append(b"hello")?;
/// let mut reader = log.reader(chiplog::Start::First)?;
/// let record = reader.next_record()?.expect("just appended");
/// assert_eq!((record.index.get(), record.data), (1, &b"hello"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its index in the log.
    pub index: Index,
    /// The time at which the log accepted it.
    pub timestamp: Timestamp,
    /// Its bytes.
    pub data: &'a [u8],
}

/// A record that owns its bytes. It is not copied unless the batch is compressed: it keeps the segment.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// let index = log.append(b"hello")?;
/// assert_eq!(log.read(index)?.data, "hello");
/// # Ok::<(), chiplog::Error>(())
/// # .map_err(|e| Box::<dyn std::error::Error>::from(e))?; Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRecord {
    /// Its index in the log.
    pub index: Index,
    /// The time at which the log accepted it.
    pub timestamp: Timestamp,
    /// Its bytes.
    pub data: Bytes,
}

/// Records that were appended together, verified. Keeps their segment; `Send + Sync`.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// let mut builder = chiplog::BatchBuilder::new();
/// builder.push(b"a")?.push(b"b")?;
/// log.append(&builder.build()?)?;
/// let batch = log.reader(chiplog::Start::First)?.next_batch()?.expect("just appended");
/// let data: Vec<&[u8]> = batch.iter().map(|r| r.data).collect();
/// assert_eq!(data, [b"a", b"b"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RecordBatch {
    /// The unpacked body: payload and table of ends.
    body: Slice,
    first: Index,
    /// Records before this one are not part of what the reader asked for.
    pub(crate) skip: u32,
    pub(crate) count: u32,
    timestamp: Timestamp,
}

impl RecordBatch {
    /// Verifies the batch at the start of `bytes` and checks its table.
    pub(crate) fn verify(
        bytes: &Slice,
        first: Index,
        timestamp: Timestamp,
    ) -> Result<Self, batch::Malformed> {
        Self::unpack(bytes, &batch::verify(bytes)?, first, timestamp)
    }

    /// Unpacks the verified batch at the start of `bytes` and checks its table.
    ///
    /// # Errors
    /// The reason why it does not unpack: it was appended that way.
    pub(crate) fn unpack(
        bytes: &Slice,
        header: &batch::BatchHeader,
        first: Index,
        timestamp: Timestamp,
    ) -> Result<Self, batch::Malformed> {
        let body = match header.codec {
            Codec::None => bytes.slice(BATCH_HEADER_BYTES..header.length as usize),
            _ => Slice::Copied(batch::body(bytes, header)?.into_owned().into()),
        };
        Body::new(&body, header.count)?.check(header.count)?;
        Ok(Self { body, first, skip: 0, count: header.count, timestamp })
    }

    /// The index of its first record.
    pub fn first(&self) -> Index {
        self.first.plus(u64::from(self.skip))
    }

    /// How many records it contains; at least 1.
    pub fn count(&self) -> u32 {
        self.count - self.skip
    }

    /// The time at which the log accepted them.
    pub fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// Returns its records, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Record<'_>> {
        (0..self.count()).map(|n| self.at(self.skip + n))
    }

    /// The bytes of all its records, one after the other: one buffer, a slice of the mapping unless the batch is
    /// compressed. [`end`](Self::end) returns where each record ends.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// log.append(&chiplog::BatchBuilder::new().push(b"to")?.push(b"be")?.build()?)?;
    /// let batch = log.reader(chiplog::Start::First)?.next_batch()?.expect("just appended");
    /// assert_eq!((batch.payload(), batch.end(0), batch.end(1)), (&b"tobe"[..], 2, 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn payload(&self) -> &[u8] {
        let (start, end) = (self.stored_end(self.skip), self.stored_end(self.count));
        self.body.get(start..end).unwrap_or_default()
    }

    /// The end of its record `n` (from 0) in [`payload`](Self::payload). For an `n` that it does not contain, the end
    /// of the last record.
    pub fn end(&self, n: u32) -> usize {
        let upto = self.skip.saturating_add(n).saturating_add(1).min(self.count);
        self.stored_end(upto) - self.stored_end(self.skip)
    }

    /// The end of the first `upto` records of the stored batch in its body; the table was checked.
    fn stored_end(&self, upto: u32) -> usize {
        let Some(n) = upto.checked_sub(1) else { return 0 };
        Body::new(&self.body, self.count).and_then(|b| b.range(n)).unwrap_or_default().end
    }

    /// Removes the records below `index`. Returns false and changes nothing if none would be left.
    pub fn skip_to(&mut self, index: Index) -> bool {
        let skip = index.0.saturating_sub(self.first.0);
        if skip >= u64::from(self.count) {
            return false;
        }
        self.skip = self.skip.max(skip as u32);
        true
    }

    /// Returns its record `n`, from 0, as one that owns its bytes.
    pub fn get_owned(&self, n: u32) -> Option<OwnedRecord> {
        (n < self.count()).then(|| self.clone().into_record(self.first().plus(u64::from(n))))
    }

    /// Returns its record `n`, from 0; None if it has fewer records.
    pub fn get(&self, n: u32) -> Option<Record<'_>> {
        (n < self.count()).then(|| self.at(self.skip + n))
    }

    /// Returns record `n` of the stored batch; the table was checked.
    pub(crate) fn at(&self, n: u32) -> Record<'_> {
        let data = Body::new(&self.body, self.count).and_then(|b| b.record(n)).unwrap_or_default();
        Record { index: self.first.plus(u64::from(n)), timestamp: self.timestamp, data }
    }

    pub(crate) fn into_record(self, index: Index) -> OwnedRecord {
        let n = (index.0 - self.first.0) as u32;
        let range = Body::new(&self.body, self.count).and_then(|b| b.range(n)).unwrap_or_default();
        OwnedRecord { index, timestamp: self.timestamp, data: self.body.slice(range).into_bytes() }
    }
}

/// A batch as stored in the log, its checksum verified, still packed. For passing on to another process, which checks
/// the same bytes again and unpacks them there. Keeps its segment; `Send + Sync`.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// use chiplog::{Start, StoredBatch};
/// log.append(b"hello")?;
/// let stored = log.reader(Start::First)?.next_stored()?.expect("just appended");
/// // In another process:
/// let got = StoredBatch::decode(stored.first(), stored.timestamp(), stored.bytes().clone())?;
/// let records = got.unpack()?;
/// assert_eq!(records.get(0).map(|r| r.data), Some(&b"hello"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct StoredBatch {
    bytes: Bytes,
    first: Index,
    timestamp: Timestamp,
    count: u32,
}

impl StoredBatch {
    /// Verifies the batch at the start of `bytes`.
    pub(crate) fn verify(
        bytes: &Slice,
        first: Index,
        timestamp: Timestamp,
    ) -> Result<Self, batch::Malformed> {
        let header = batch::verify(bytes)?;
        let bytes = bytes.slice(0..header.length as usize).into_bytes();
        Ok(Self { bytes, first, timestamp, count: header.count })
    }

    /// Decodes a batch that another process read: its encoded bytes, the index of its first record, and the time at
    /// which the log accepted it. Verifies the checksum.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not exactly one valid batch, or its records go beyond the largest index.
    pub fn decode(first: Index, timestamp: Timestamp, bytes: Bytes) -> Result<Self> {
        let header = match batch::verify(&bytes) {
            Ok(header) if header.length as usize != bytes.len() => Err("bytes follow the batch"),
            Ok(header) if first.0 == 0 || first.0.checked_add(u64::from(header.count)).is_none() => {
                Err("its index is out of bounds")
            }
            checked => checked,
        };
        let header =
            header.map_err(|e| Error::new(ErrorKind::Corrupt, format!("not a stored batch: {e}")))?;
        Ok(Self { bytes, first, timestamp, count: header.count })
    }

    /// The index of its first record, which can be below the one requested.
    pub fn first(&self) -> Index {
        self.first
    }

    /// How many records it contains; at least 1.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The index of its last record.
    pub fn last(&self) -> Index {
        self.first.plus(u64::from(self.count)).previous()
    }

    /// The time at which the log accepted it.
    pub fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// The bytes of memory that [`Self::unpack`] allocates: 0 if the batch is not compressed.
    pub fn unpacked_bytes(&self) -> usize {
        match batch::BatchHeader::parse(&self.bytes) {
            Ok(header) if header.codec != Codec::None => header.body_length as usize,
            _ => 0,
        }
    }

    /// The encoded bytes, as stored in the log.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns its records. Copies nothing unless it is compressed.
    ///
    /// # Errors
    /// `Undecodable`: the body does not unpack as the header says, or the table is out of order.
    pub fn unpack(&self) -> Result<RecordBatch> {
        // The checksum was verified, so the header parses as it did then.
        let unpack = || {
            let header = batch::BatchHeader::parse(&self.bytes)?;
            RecordBatch::unpack(&Slice::Copied(self.bytes.clone()), &header, self.first, self.timestamp)
        };
        unpack().map_err(|why| undecodable(self.first, self.count, why))
    }
}

/// The error for a batch of `count` records from `first` on that is stored as it was appended, but does not unpack.
pub(crate) fn undecodable(first: Index, count: u32, why: batch::Malformed) -> Error {
    let next = first.plus(u64::from(count));
    let records = match count {
        1 => format!("record {first}"),
        _ => format!("records {first} to {}", next.previous()),
    };
    let what = format!(
        "{records} cannot be unpacked: {why}; the checksum is right, so every replica has the batch as it was appended; continue at record {next}"
    );
    Error::new(ErrorKind::Undecodable, what)
}
