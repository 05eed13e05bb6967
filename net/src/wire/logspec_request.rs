//! AppendRequest: a request as it was received, checked in one pass and not taken apart. A request can hold hundreds of
//! thousands of proposals; an object for each would cost more than its bytes.
//!
//! Invariants: `wire` is a valid message; `count`, `largest` and `sequence` are its values.

use bytes::{BufMut, Bytes, BytesMut};
use chiplog::{Batch, BatchBuilder, Error, ErrorKind};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message, bytes::Buf};

/// The approximate size of a request's batches: the log writes the first one while the next one is built.
const BATCH_BYTES: usize = 1 << 20;
/// The overhead of a record in a batch.
const RECORD_BYTES: usize = 4;
/// The overhead of a batch.
const BATCH_HEAD_BYTES: usize = chiplog::limits::BATCH_HEADER_BYTES;

/// `logspec.AppendRequest`: a sequence number and proposals.
///
/// ```
/// use chiplog_net::service::logspec::AppendRequest;
/// let request = AppendRequest::new(1, ["one", "", "three"]);
/// assert_eq!((request.sequence(), request.count()), (1, 3));
/// assert_eq!(request.proposals().collect::<Vec<_>>(), [&b"one"[..], b"", b"three"]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppendRequest {
    wire: Bytes,
    sequence: u64,
    count: u32,
    largest: usize,
}

/// A field of the message, as far as it is used.
enum Field<'a> {
    Sequence(u64),
    Proposal(&'a [u8]),
    Unknown,
}

impl AppendRequest {
    /// Creates a request with these proposals; none: a probe.
    pub fn new<P: AsRef<[u8]>>(sequence: u64, proposals: impl IntoIterator<Item = P>) -> Self {
        let mut wire = BytesMut::new();
        encoding::uint64::encode(1, &sequence, &mut wire);
        let (mut count, mut largest) = (0, 0);
        for proposal in proposals {
            let proposal = proposal.as_ref();
            encoding::encode_key(2, WireType::LengthDelimited, &mut wire);
            encoding::encode_varint(proposal.len() as u64, &mut wire);
            wire.put_slice(proposal);
            count += 1;
            largest = proposal.len().max(largest);
        }
        Self { wire: wire.freeze(), sequence, count, largest }
    }

    /// The client's sequence number.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The number of proposals.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The size of the largest proposal in bytes.
    pub fn largest(&self) -> usize {
        self.largest
    }

    /// The proposals, in order.
    pub fn proposals(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.wire[..];
        std::iter::from_fn(move || {
            loop {
                match next_field(&mut rest) {
                    Ok(Some(Field::Proposal(proposal))) => return Some(proposal),
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return None, // cannot fail: it was checked before
                }
            }
        })
    }

    /// The approximate size in the log.
    pub(crate) fn stored_bytes(&self) -> usize {
        self.wire.len() + RECORD_BYTES * self.count as usize
    }

    /// The memory for the request and its reply.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.wire.len() + size_of::<u64>() * self.count as usize
    }

    /// The proposals in batches, in order, each of up to `batch_bytes_max` bytes.
    pub(crate) fn batches(&self, batch_bytes_max: u32) -> impl Iterator<Item = chiplog::Result<Batch>> {
        let most = batch_bytes_max as usize;
        let target = most.min(BATCH_BYTES);
        let mut proposals = self.proposals().peekable();
        std::iter::from_fn(move || {
            proposals.peek()?;
            let mut builder = BatchBuilder::new();
            while let Some(proposal) = proposals.next_if(|p| {
                let after = builder.encoded_bytes() + p.len() + RECORD_BYTES;
                builder.is_empty()
                    || (after <= target && builder.count() < chiplog::limits::BATCH_RECORDS_MAX)
            }) {
                if let Err(error) = check_size(proposal.len(), most).and_then(|()| builder.push(proposal)) {
                    return Some(Err(error));
                }
            }
            Some(builder.build())
        })
    }

    fn look_through(wire: Bytes) -> Result<Self, DecodeError> {
        let (mut sequence, mut count, mut largest) = (0, 0, 0);
        let mut rest = &wire[..];
        while let Some(field) = next_field(&mut rest)? {
            match field {
                Field::Sequence(number) => sequence = number,
                Field::Proposal(proposal) => {
                    count += 1;
                    largest = proposal.len().max(largest);
                }
                Field::Unknown => {}
            }
        }
        Ok(Self { wire, sequence, count, largest })
    }
}

fn check_size(bytes: usize, batch_bytes_max: usize) -> chiplog::Result<()> {
    if bytes + RECORD_BYTES + BATCH_HEAD_BYTES <= batch_bytes_max {
        return Ok(());
    }
    let what = format!("a proposal has {bytes} bytes; a batch of the log holds up to {batch_bytes_max}");
    Err(Error::new(ErrorKind::TooLarge, what))
}

/// Removes the next field from the front of `rest`.
fn next_field<'a>(rest: &mut &'a [u8]) -> Result<Option<Field<'a>>, DecodeError> {
    if rest.is_empty() {
        return Ok(None);
    }
    let (tag, wire_type) = encoding::decode_key(rest)?;
    let mut value = *rest;
    encoding::skip_field(wire_type, tag, rest, DecodeContext::default())?;
    Ok(Some(match tag {
        1 => {
            encoding::check_wire_type(WireType::Varint, wire_type)?;
            Field::Sequence(encoding::decode_varint(&mut value)?)
        }
        2 => {
            encoding::check_wire_type(WireType::LengthDelimited, wire_type)?;
            let length = encoding::decode_varint(&mut value)? as usize;
            Field::Proposal(value.get(..length).unwrap_or_default()) // skipping it has checked the length
        }
        _ => Field::Unknown,
    }))
}

impl Message for AppendRequest {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.wire);
    }

    fn encoded_len(&self) -> usize {
        self.wire.len()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }

    fn merge(&mut self, mut buffer: impl Buf) -> Result<(), DecodeError> {
        let more = buffer.copy_to_bytes(buffer.remaining()); // no copy of what tonic has received
        // Two concatenated messages are one merged message.
        let wire = if self.wire.is_empty() { more } else { [&self.wire[..], &more].concat().into() };
        *self = Self::look_through(wire)?;
        Ok(())
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        let mut field = BytesMut::new();
        encoding::encode_key(tag, wire_type, &mut field);
        match wire_type {
            WireType::Varint => encoding::encode_varint(encoding::decode_varint(buffer)?, &mut field),
            WireType::LengthDelimited => {
                let mut value = Bytes::new();
                encoding::bytes::merge(wire_type, &mut value, buffer, context)?;
                encoding::encode_varint(value.len() as u64, &mut field);
                field.put_slice(&value);
            }
            _ => return encoding::skip_field(wire_type, tag, buffer, context),
        }
        self.merge(field.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The type that would be generated.
    #[derive(Clone, PartialEq, Message)]
    struct Generated {
        #[prost(uint64, tag = "1")]
        sequence: u64,
        #[prost(bytes = "vec", repeated, tag = "2")]
        proposals: Vec<Vec<u8>>,
        #[prost(string, tag = "9")]
        later: String,
    }

    #[test]
    fn reads_and_writes_like_a_generated_message() {
        let proposals = vec![b"one".to_vec(), vec![], vec![7; 300]];
        let theirs = Generated { sequence: 77, proposals: proposals.clone(), later: "unknown".into() };
        let ours = AppendRequest::decode(&theirs.encode_to_vec()[..]).unwrap();
        assert_eq!((ours.sequence(), ours.count(), ours.largest()), (77, 3, 300));
        assert!(ours.proposals().eq(proposals.iter().map(|p| &p[..])));
        assert_eq!(Generated::decode(&ours.encode_to_vec()[..]).unwrap(), theirs);
        let built = AppendRequest::new(77, &proposals);
        let back = Generated::decode(&built.encode_to_vec()[..]).unwrap();
        assert_eq!(back, Generated { later: String::new(), ..theirs.clone() });
        let delimited = theirs.encode_length_delimited_to_vec();
        let ours = AppendRequest::decode_length_delimited(&delimited[..]).unwrap();
        assert_eq!((ours.sequence(), ours.count()), (77, 3));
    }

    #[test]
    fn invalid_message_is_rejected() {
        let sound = AppendRequest::new(3, ["abc"]).encode_to_vec();
        for end in 1..sound.len() {
            let cut = AppendRequest::decode(&sound[..end]);
            assert!(cut.is_err() || end == 2, "cut at {end}"); // the first field ends at 2
        }
        for bad in
            [&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f][..], &[0x0a, 0], &[0x10, 1], &[0]]
        {
            assert!(AppendRequest::decode(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn batches_keep_order_and_limits() {
        let proposals: Vec<Vec<u8>> =
            [10, 900, 0, 0, 500, 700, 3000, 1].iter().map(|n| vec![*n as u8; *n]).collect();
        let request = AppendRequest::new(1, &proposals);
        let batches: Vec<Batch> = request.batches(3100).collect::<Result<_, _>>().unwrap();
        assert!(batches.iter().all(|b| b.as_bytes().len() <= 3100));
        let records: Vec<Vec<u8>> = batches.iter().flat_map(|b| b.records().unwrap()).collect();
        assert_eq!(records, proposals);
        assert!(request.batches(3000).any(|b| b.is_err_and(|e| e.kind() == ErrorKind::TooLarge)));
        assert_eq!(AppendRequest::new(1, [""; 0]).batches(1024).count(), 0);
    }

    #[test]
    fn million_empty_proposals() {
        let request = AppendRequest::new(1, std::iter::repeat_n("", (1 << 20) + 5));
        let counts: u64 = request.batches(32 << 20).map(|b| u64::from(b.unwrap().count())).sum();
        assert_eq!(counts, (1 << 20) + 5);
        assert!(request.memory_bytes() < 12 << 20);
    }
}
