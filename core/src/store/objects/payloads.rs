//! Payloads: the batches that the log only refers to, as readers and makers of objects get them from the object store.
//!
//! ```text
//! <log id>/p/<term>.<sequence>      header (72 bytes) | batch | batch | ... | breaks | logs | checksum
//! ```
//!
//! A payload slice is fetched whole, and the newest ones stay in memory: a reader needs the other batches of a slice next.
//!
//! Invariants:
//! - a batch is returned only if it is the one that the reference names, to the last byte;
//! - slices in memory are bounded, and the leader's own ones are there as soon as they are stored.
//!
//! Must not know: who makes slices, when they are deleted.

use super::names::{not_there, root_name};
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::{BatchHeader, Malformed, u32_at, u64_at, verify};
use crate::record::compression::Codec;
use crate::record::crc::crc32c;
use crate::record::reference::{PAYLOAD_HEADER_BYTES, PayloadId, Reference, UNRELEASED_HEADER_BYTES};
use crate::store::format::block::{
    BLOCK_HEADER_BYTES, Batches, BlockHeader, Kind, digest_of_batches, table_of,
};
use crate::store::format::mixed::{self, Run};
use crate::store::format::references::{has_references, resolved_stride};
use crate::types::{Index, LogId, LogNumber, Term, Timestamp};
use crate::vault::Vault;
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// The most bytes of slices that are kept in memory, apart from one that is being read.
const KEPT_BYTES_MAX: u64 = 64 << 20;
const MAGIC: [u8; 8] = *b"chiplogP";
/// The version of the format that added references.
const VERSION: u32 = 4;
/// The size of a break, and of the checksum of all of them.
const WORD_BYTES: u32 = 4;
/// The size of a stretch of batches of one log.
const STRETCH_BYTES: u32 = 8;

/// The folder of a log's payload slices.
pub(crate) fn payloads(log: LogId) -> String {
    format!("{:032x}/p/", log.0)
}

/// The name of a payload slice. Names sort as the slices do.
pub(crate) fn payload_name(log: LogId, id: PayloadId) -> String {
    format!("{}{id}", payloads(log))
}

/// The slice that a name names; None for names of other things.
pub(crate) fn payload_id(log: LogId, name: &str) -> Option<PayloadId> {
    let (term, sequence) = name.strip_prefix(&payloads(log))?.split_once('.')?;
    let number = |digits: &str| {
        let is_number = digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| digits.parse().ok()).flatten()
    };
    Some(PayloadId { term: Term(number(term)?), sequence: number(sequence)? })
}

/// The contents of a payload slice's header and end, beside its name. The batches of all slices of a term, in the order of their numbers
/// and offsets, are those of the leader's queue; a break is where something else was in the queue between two of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PayloadHead {
    pub(crate) batches: u32,
    /// The leader's time when it put the slice first.
    pub(crate) time: Timestamp,
    /// Where the batches end.
    pub(crate) end: u32,
    /// The offsets of batches that do not directly follow the one before, ascending.
    pub(crate) breaks: Vec<u32>,
    /// Of a shared group: the logs of all batches, in stretches of batches of one log, each with its end. Ascending.
    pub(crate) logs: Vec<(LogNumber, u32)>,
}

impl PayloadHead {
    /// The size of the slice.
    pub(crate) fn bytes(&self) -> u32 {
        self.end + (self.breaks.len() as u32 + 1) * WORD_BYTES + self.logs.len() as u32 * STRETCH_BYTES
    }

    /// The log of the batch at an offset.
    pub(crate) fn log_at(&self, offset: u32) -> LogNumber {
        let at = self.logs.partition_point(|(_, end)| *end <= offset);
        self.logs.get(at).map_or(LogNumber::OWN, |(log, _)| *log)
    }

    /// The first bytes of the slice, and its last ones. Its batches are between them.
    pub(crate) fn encode(&self, log: LogId, id: PayloadId) -> ([u8; PAYLOAD_HEADER_BYTES], Vec<u8>) {
        let mut head = [0; PAYLOAD_HEADER_BYTES];
        head[..8].copy_from_slice(&MAGIC);
        head[12..16].copy_from_slice(&VERSION.to_le_bytes());
        head[16..32].copy_from_slice(&log.0.to_le_bytes());
        head[32..40].copy_from_slice(&id.term.0.to_le_bytes());
        head[40..48].copy_from_slice(&id.sequence.to_le_bytes());
        head[48..52].copy_from_slice(&self.bytes().to_le_bytes());
        head[52..56].copy_from_slice(&self.batches.to_le_bytes());
        head[56..64].copy_from_slice(&self.time.0.to_le_bytes());
        head[64..68].copy_from_slice(&self.end.to_le_bytes());
        head[68..72].copy_from_slice(&(self.logs.len() as u32).to_le_bytes());
        let crc = crc32c(&head[12..]);
        head[8..12].copy_from_slice(&crc.to_le_bytes());
        let mut tail: Vec<u8> = self.breaks.iter().flat_map(|at| at.to_le_bytes()).collect();
        tail.extend(self.logs.iter().flat_map(|(log, end)| [log.0, *end]).flat_map(u32::to_le_bytes));
        tail.extend_from_slice(&crc32c(&tail).to_le_bytes());
        (head, tail)
    }

    /// Those of the slice of this name, whose bytes these are. Its batches are not checked.
    ///
    /// # Errors
    /// It is damaged, or another one.
    pub(crate) fn parse(log: LogId, id: PayloadId, bytes: &[u8]) -> Result<Self, Malformed> {
        check_header(log, id, bytes)?;
        let (end, malformed) = (u32_at(bytes, 64), "payload slice has impossible offsets");
        let tail =
            bytes.get(end as usize..).filter(|_| end as usize >= PAYLOAD_HEADER_BYTES).ok_or(malformed)?;
        let (words, sum) = tail.split_last_chunk::<4>().ok_or(malformed)?;
        if crc32c(words).to_le_bytes() != *sum {
            return Err("the last bytes of a payload slice do not match their checksum");
        }
        let logs = (u32_at(bytes, 68) as usize).saturating_mul(STRETCH_BYTES as usize);
        let (breaks, logs) = words.split_at(words.len().checked_sub(logs).ok_or(malformed)?);
        let logs: Vec<_> =
            logs.as_chunks::<8>().0.iter().map(|b| (LogNumber(u32_at(b, 0)), u32_at(b, 4))).collect();
        let begins_right = logs.first().is_none_or(|(_, end)| *end > PAYLOAD_HEADER_BYTES as u32);
        let ends_right = logs.last().is_none_or(|(_, last)| *last == end);
        if !begins_right || !ends_right || logs.iter().any(|(log, _)| log.is_none()) {
            return Err("payload slice has impossible logs");
        }
        if !logs.is_sorted_by(|(_, a), (_, b)| a < b) {
            return Err("payload slice has impossible logs");
        }
        let (words, rest) = breaks.as_chunks::<4>();
        let breaks: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let are_within = breaks.iter().all(|at| (PAYLOAD_HEADER_BYTES as u32..end).contains(at));
        if !rest.is_empty() || !are_within || !breaks.is_sorted_by(|a, b| a < b) {
            return Err(malformed);
        }
        Ok(Self { batches: u32_at(bytes, 52), time: Timestamp(u64_at(bytes, 56)), end, breaks, logs })
    }
}

/// Checks that these bytes begin as the slice does, and that it has as many.
fn check_header(log: LogId, id: PayloadId, bytes: &[u8]) -> Result<(), Malformed> {
    let head: &[u8; PAYLOAD_HEADER_BYTES] = bytes.first_chunk().ok_or("payload slice is cut off")?;
    if head[..8] == MAGIC && crc32c(&head[12..UNRELEASED_HEADER_BYTES]) == u32_at(head, 8) {
        return Err("payload slice of a build before the first release: read the log with that build");
    }
    if head[..8] != MAGIC || crc32c(&head[12..]) != u32_at(head, 8) {
        return Err("no payload slice begins here");
    }
    let found = PayloadId { term: Term(u64_at(head, 32)), sequence: u64_at(head, 40) };
    if u32_at(head, 12) != VERSION || head[16..32] != log.0.to_le_bytes() || found != id {
        return Err("another payload slice than its name says");
    }
    if u32_at(head, 48) as usize != bytes.len() {
        return Err("payload slice has another length than its header says");
    }
    Ok(())
}

/// The payload slices of a log. `Send + Sync`.
#[derive(Debug)]
pub(crate) struct Payloads {
    vault: Arc<dyn Vault>,
    log: LogId,
    bytes_max: u64,
    kept: Mutex<Kept>,
    fetched: Condvar,
}

/// The slices in memory, the one that was used last first.
#[derive(Debug, Default)]
struct Kept {
    slices: VecDeque<(PayloadId, Bytes)>,
    bytes: u64,
    /// Slices that a thread fetches now, and the failures that are passed on to those who wait for it.
    fetching: BTreeMap<PayloadId, Arc<OnceLock<Error>>>,
}

impl Kept {
    fn find(&mut self, id: PayloadId) -> Option<Bytes> {
        let at = self.slices.iter().position(|(kept, _)| *kept == id)?;
        let slice = self.slices.remove(at)?;
        let bytes = slice.1.clone();
        self.slices.push_front(slice);
        Some(bytes)
    }

    fn forget(&mut self, id: PayloadId) {
        if let Some(at) = self.slices.iter().position(|(kept, _)| *kept == id)
            && let Some((_, bytes)) = self.slices.remove(at)
        {
            self.bytes -= bytes.len() as u64;
        }
    }
}

impl Payloads {
    pub(crate) fn new(vault: Arc<dyn Vault>, log: LogId, bytes_max: u64) -> Self {
        let bytes_max = bytes_max.min(KEPT_BYTES_MAX);
        Self { vault, log, bytes_max, kept: Mutex::default(), fetched: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a slice that is in the object store.
    pub(crate) fn keep(&self, id: PayloadId, bytes: Bytes) {
        let mut kept = self.lock();
        kept.forget(id);
        kept.bytes += bytes.len() as u64;
        kept.slices.push_front((id, bytes));
        while kept.bytes > self.bytes_max && kept.slices.len() > 1 {
            let Some((_, gone)) = kept.slices.pop_back() else { break };
            kept.bytes -= gone.len() as u64;
        }
    }

    /// The batch that a verified reference names. Blocks for the network.
    ///
    /// # Errors
    /// `NotFound`: the slice is not in the object store. `Corrupt`: it is damaged there. Both name it. Those of [`Vault`].
    pub(crate) fn batch(&self, header: &BatchHeader, reference: &Reference) -> Result<Bytes> {
        let found = self.find(header, reference);
        match &found {
            // A slice that came damaged may be sound in the object store.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.lock().forget(reference.slice);
                self.find(header, reference)
            }
            _ => found,
        }
    }

    fn find(&self, header: &BatchHeader, reference: &Reference) -> Result<Bytes> {
        pick(self.log, &self.slice(reference)?, header, reference)
    }

    /// A whole slice: from memory, from another thread that fetches it, or from the object store. If that thread fails, so do those who
    /// wait for it: each of them would else wait for the object store once more, one after the other.
    fn slice(&self, reference: &Reference) -> Result<Bytes> {
        let id = reference.slice;
        let mut kept = self.lock();
        let failure = loop {
            if let Some(bytes) = kept.find(id) {
                return Ok(bytes);
            }
            let Some(failure) = kept.fetching.get(&id).cloned() else {
                break kept.fetching.entry(id).or_default().clone();
            };
            while kept.fetching.get(&id).is_some_and(|now| Arc::ptr_eq(now, &failure)) {
                kept = self.fetched.wait(kept).unwrap_or_else(PoisonError::into_inner);
            }
            if let Some(error) = failure.get() {
                return Err(error.clone());
            }
        };
        drop(kept);
        let _fetching = Fetching { payloads: self, id };
        let bytes =
            fetch(&*self.vault, self.log, reference).inspect_err(|error| _ = failure.set(error.clone()))?;
        self.keep(id, bytes.clone());
        Ok(bytes)
    }

    /// A sound block with the batches themselves instead of references to them. Blocks for the network.
    ///
    /// # Errors
    /// Those of [`Self::batch`].
    pub(crate) fn block(&self, header: BlockHeader, body: Bytes) -> Result<(BlockHeader, Bytes)> {
        resolve(header, body, |header, reference| self.batch(header, reference))
    }
}

/// The slice to which a verified reference refers, whole.
///
/// # Errors
/// `NotFound`: it is not in the object store. `Corrupt`: it is another one. Both name it. Those of [`Vault`].
pub(crate) fn fetch(vault: &dyn Vault, log: LogId, reference: &Reference) -> Result<Bytes> {
    let name = payload_name(log, reference.slice);
    let bytes = vault.get(&name, 0..reference.slice_bytes.into()).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::OutOfRange => {
            let root = root_name(log);
            match (vault.size(&root), error.kind()) {
                // Not one slice, but all of them.
                (Ok(None), _) => Error::new(ErrorKind::Unavailable, not_there(&root)),
                (_, ErrorKind::NotFound) => Error::new(
                    ErrorKind::NotFound,
                    format!("payload slice {name} is not in the object store"),
                ),
                _ => corrupt(log, reference, "payload slice is cut off"),
            }
        }
        _ => error,
    })?;
    check_header(log, reference.slice, &bytes).map_err(|why| corrupt(log, reference, why))?;
    Ok(bytes)
}

/// The batch that a verified reference names, from its slice.
///
/// # Errors
/// `Corrupt`: it is not there as it was.
pub(crate) fn pick(log: LogId, slice: &Bytes, header: &BatchHeader, reference: &Reference) -> Result<Bytes> {
    let range = reference.offset as usize..(reference.offset + reference.length) as usize;
    let checked = match slice.get(range.clone()) {
        Some(bytes) => reference.check(header, bytes),
        None => Err("payload slice is cut off"),
    };
    checked.map_err(|why| corrupt(log, reference, why))?;
    Ok(slice.slice(range))
}

fn corrupt(log: LogId, reference: &Reference, why: &str) -> Error {
    Error::corrupt(&PathBuf::from(payload_name(log, reference.slice)), reference.offset.into(), why)
}

/// A sound block with the batches themselves instead of references to them, which `find` returns.
///
/// # Errors
/// Those of `find`.
pub(crate) fn resolve(
    header: BlockHeader,
    body: Bytes,
    find: impl Fn(&BatchHeader, &Reference) -> Result<Bytes>,
) -> Result<(BlockHeader, Bytes)> {
    resolve_placed(header, body, |_, header, reference| find(header, reference))
}

/// As [`resolve`]. `find` also gets the log of a batch, and the index of its first record there.
///
/// # Errors
/// Those of `find`.
pub(crate) fn resolve_placed(
    header: BlockHeader,
    body: Bytes,
    mut find: impl FnMut((LogNumber, Index), &BatchHeader, &Reference) -> Result<Bytes>,
) -> Result<(BlockHeader, Bytes)> {
    if !has_references(&header, &body) {
        return Ok((header, body));
    }
    let malformed = |why: Malformed| {
        Error::new(ErrorKind::Corrupt, format!("entry {} has an impossible batch: {why}", header.raft_index))
    };
    let mut whole = BytesMut::with_capacity(resolved_stride(&header, &body));
    let mut take = |log, first: &mut Index, batch: Result<(BatchHeader, &[u8]), Malformed>| {
        let (of, bytes) = batch.map_err(malformed)?;
        let at = (log, *first);
        *first = first.plus(of.count.into());
        if of.codec != Codec::Reference {
            return Ok((of, Bytes::copy_from_slice(bytes)));
        }
        let batch = find(at, &of, &Reference::parse(&of, bytes).map_err(malformed)?)?;
        Ok::<_, Error>((verify(&batch).map_err(malformed)?, batch))
    };
    let body_digest = if header.kind == Kind::Mixed {
        let (table, mut runs) = (table_of(&header, &body).map_err(malformed)?, Vec::new());
        whole.extend_from_slice(&body[..table.len()]);
        for (run, range) in table.runs() {
            let (mut first, mut crcs, begin) = (run.first, Vec::new(), whole.len());
            for batch in Batches::new(&body[range]) {
                let (batch, bytes) = take(run.log, &mut first, batch)?;
                crcs.push(batch.crc);
                whole.extend_from_slice(&bytes);
            }
            let bytes = (whole.len() - begin) as u32;
            runs.push(Run { bytes, digest: digest_of_batches(crcs), ..run });
        }
        let table = mixed::encode(&runs);
        whole[..table.len()].copy_from_slice(&table);
        crc32c(&table)
    } else {
        let (mut first, mut crcs) = (header.first, Vec::new());
        for batch in Batches::new(&body) {
            let (batch, bytes) = take(LogNumber::OWN, &mut first, batch)?;
            crcs.push(batch.crc);
            whole.extend_from_slice(&bytes);
        }
        digest_of_batches(crcs)
    };
    let length = (BLOCK_HEADER_BYTES + whole.len()) as u32;
    Ok((BlockHeader { length, body_digest, ..header }, whole.freeze()))
}

/// A slice that is being fetched. Threads that wait for it go on when this is dropped, also by a panic in the program's vault.
struct Fetching<'a> {
    payloads: &'a Payloads,
    id: PayloadId,
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.payloads.lock().fetching.remove(&self.id);
        self.payloads.fetched.notify_all();
    }
}

/// The error of records that are in the object store alone, at a log that was opened without one.
pub(crate) fn without_store() -> Error {
    let what = "the record is in a payload slice in the object store, and this log was opened without one: set object_store at the \
                server, or the vault in a program, or read it from another replica";
    Error::new(ErrorKind::Unavailable, what).into_lasting()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::batch::{Batch, BatchBuilder};
    use crate::vault::{HookedVault, MemoryVault};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    const LOG: LogId = LogId(7);
    const ID: PayloadId = PayloadId { term: Term(3), sequence: 12 };

    fn batch(text: &[u8]) -> Batch {
        BatchBuilder::new().push(text).unwrap().build().unwrap()
    }

    fn stored(vault: &MemoryVault, batches: &[Batch]) -> Vec<Reference> {
        let bytes: usize = batches.iter().map(|batch| batch.as_bytes().len()).sum();
        let end = (PAYLOAD_HEADER_BYTES + bytes) as u32;
        let breaks = vec![PAYLOAD_HEADER_BYTES as u32];
        let logs = Vec::new();
        let head = PayloadHead { batches: batches.len() as u32, time: Timestamp(5), end, breaks, logs };
        let slice_bytes = head.bytes();
        let (begin, tail) = head.encode(LOG, ID);
        let mut whole = begin.to_vec();
        let mut references = Vec::new();
        for batch in batches {
            let (offset, length) = (whole.len() as u32, batch.as_bytes().len() as u32);
            references.push(Reference { slice: ID, offset, length, crc: batch.header().crc, slice_bytes });
            whole.extend_from_slice(batch.as_bytes());
        }
        whole.extend_from_slice(&tail);
        assert_eq!(PayloadHead::parse(LOG, ID, &whole), Ok(head));
        vault.put(&payload_name(LOG, ID), &[whole.into()]).unwrap();
        vault.put(&root_name(LOG), &["root".into()]).unwrap();
        references
    }

    #[test]
    fn names_are_those_of_the_log_and_in_order() {
        let name = payload_name(LOG, ID);
        let text = "00000000000000000000000000000007/p/00000000000000000003.00000000000000000012";
        assert_eq!((name.as_str(), payload_id(LOG, &name)), (text, Some(ID)));
        crate::vault::check_name(&name).unwrap();
        assert_eq!(payload_id(LogId(8), &name), None);
        for no in [&text[..text.len() - 1], &text.replace('.', "-"), &format!("{text}.0")] {
            assert_eq!(payload_id(LOG, no), None, "{no}");
        }
        let later = PayloadId { term: Term(10), sequence: 1 };
        assert!(payload_name(LOG, later) > name && later > ID);
    }

    #[test]
    fn batches_come_as_they_were_and_damage_never() {
        let (vault, batches) = (Arc::new(MemoryVault::default()), [batch(b"one"), batch(b"two")]);
        let references = stored(&vault, &batches);
        let get = |n: usize| {
            let payloads = Payloads::new(vault.clone(), LOG, 1 << 20);
            payloads.batch(batches[n].header(), &references[n])
        };
        for (n, batch) in batches.iter().enumerate() {
            assert_eq!(get(n).unwrap(), batch.as_bytes());
        }
        let name = payload_name(LOG, ID);
        let whole = vault.get(&name, 0..references[0].slice_bytes.into()).unwrap();
        for bit in (0..whole.len() * 8).step_by(3) {
            let mut bad = whole.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            vault.put(&name, &[bad.into()]).unwrap();
            for (n, batch) in batches.iter().enumerate() {
                match get(n) {
                    Ok(found) => assert_eq!(found, batch.as_bytes(), "bit {bit}"),
                    Err(error) => {
                        assert!(
                            error.kind() == ErrorKind::Corrupt && error.to_string().contains(&name),
                            "{error}"
                        );
                    }
                }
            }
        }
        vault.put(&name, &[whole.slice(..whole.len() - 1)]).unwrap();
        assert_eq!(get(0).unwrap_err().kind(), ErrorKind::Corrupt);
        vault.delete(&name).unwrap();
        let error = get(0).unwrap_err();
        assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains(&name), "{error}");
        vault.delete(&root_name(LOG)).unwrap();
        assert_eq!(get(0).unwrap_err().kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn memory_is_bounded_and_spares_requests() {
        let (vault, batches) = (Arc::new(MemoryVault::default()), [batch(&[7; 600])]);
        let references = stored(&vault, &batches);
        let payloads = Payloads::new(vault.clone(), LOG, 1000);
        payloads.batch(batches[0].header(), &references[0]).unwrap();
        vault.delete(&payload_name(LOG, ID)).unwrap();
        payloads.batch(batches[0].header(), &references[0]).unwrap();
        payloads.keep(PayloadId { sequence: 13, ..ID }, vec![0; 600].into());
        assert_eq!(payloads.lock().slices.len(), 1);
        let error = payloads.batch(batches[0].header(), &references[0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }

    /// The object store is silent for long, and fails: threads that waited for a slice began to fetch it one after the other.
    #[test]
    fn readers_share_a_failure() {
        const OTHERS: usize = 5;
        let (below, batches) = (Arc::new(MemoryVault::default()), [batch(b"one")]);
        let references = stored(&below, &batches);
        let vault = Arc::new(HookedVault::new(below));
        let (gets, fails) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, failing) = (gets.clone(), fails.clone());
        vault.set(move |call, name| {
            if call != "get" || !name.contains("/p/") {
                return Ok(());
            }
            counted.fetch_add(1, Ordering::SeqCst);
            while !failing.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            Err(Error::new(ErrorKind::Unavailable, "no answer"))
        });
        let payloads = Payloads::new(vault.clone(), LOG, 1 << 20);
        let read = || payloads.batch(batches[0].header(), &references[0]);
        std::thread::scope(|scope| {
            let first = scope.spawn(read);
            while gets.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let others: Vec<_> = (0..OTHERS).map(|_| scope.spawn(read)).collect();
            let waits = || payloads.lock().fetching.get(&ID).map_or(0, Arc::strong_count) == 2 + OTHERS;
            while !waits() {
                std::thread::yield_now();
            }
            fails.store(true, Ordering::SeqCst);
            for thread in others.into_iter().chain([first]) {
                assert_eq!(thread.join().unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
            }
        });
        assert_eq!(gets.load(Ordering::SeqCst), 1, "all of them waited for the one");
        vault.set(|_, _| Ok(()));
        assert_eq!(read().unwrap(), batches[0].as_bytes());
    }

    #[test]
    fn blocks_are_as_if_they_had_never_referred() {
        let (vault, batches) = (Arc::new(MemoryVault::default()), [batch(b"one"), batch(b"two")]);
        let references = stored(&vault, &batches);
        let plain: Vec<u8> = batches.iter().flat_map(|batch| batch.as_bytes().to_vec()).collect();
        let (of, second) = references[1].encode(batches[1].header());
        let body = Bytes::from([&batches[0].as_bytes()[..], &second].concat());
        let header = BlockHeader {
            length: (BLOCK_HEADER_BYTES + body.len()) as u32,
            batch_count: 2,
            record_count: 2,
            body_digest: digest_of_batches([batches[0].header().crc, of.crc]),
            ..crate::store::format::block::sample_header()
        };
        let payloads = Payloads::new(vault, LOG, 1 << 20);
        let (resolved, whole) = payloads.block(header, body.clone()).unwrap();
        assert_eq!(whole, plain);
        assert_eq!(resolved.body_digest, digest_of_batches(batches.iter().map(|batch| batch.header().crc)));
        assert_eq!(resolved.stride(), resolved_stride(&header, &body));
        assert_eq!(payloads.block(resolved, whole.clone()).unwrap(), (resolved, whole));
        // One that cannot be read never stays in a block that counts as whole.
        let (_, old) = Reference { offset: 64, ..references[1] }.encode(batches[1].header());
        let body = Bytes::from([&batches[0].as_bytes()[..], &old].concat());
        let length = (BLOCK_HEADER_BYTES + body.len()) as u32;
        let error = payloads.block(BlockHeader { length, ..header }, body).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}
