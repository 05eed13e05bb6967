//! Checks the records of a replica against the text and against the confirmations.

use crate::producers::Promises;
use crate::text::Text;
use crate::trio::{PATIENCE, Trio};
use chiplog::{ErrorKind, Index, Log, Start};
use std::error::Error;
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

fn broken<T>(what: String) -> Result<T> {
    Err(format!("A PROMISE IS BROKEN: {what}").into())
}

/// The records that a reader has seen: every record right, at its confirmed index, in order, once.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    text: &'a Text,
    promises: &'a Promises,
    known: Vec<bool>,
    next: Index,
    count: u64,
    hash: DefaultHasher,
}

impl<'a> Seen<'a> {
    fn from(text: &'a Text, promises: &'a Promises, first: Index) -> Self {
        let known = vec![false; promises.total() as usize];
        Self { text, promises, known, next: first, count: 0, hash: DefaultHasher::new() }
    }

    fn take(&mut self, index: Index, data: &[u8]) -> Result<()> {
        if index != self.next {
            return broken(format!("record {index} arrived instead of {}", self.next));
        }
        let number = match self.text.number_of(data) {
            Some(number) if number < self.promises.total() => number,
            _ => return broken(format!("record {index} was never sent")),
        };
        if std::mem::replace(&mut self.known[number as usize], true) {
            return broken(format!("line {number} is in the log twice, the second time at {index}"));
        }
        if self.promises.place(number).is_some_and(|place| place != index) {
            return broken(format!("line {number} was not confirmed at {index}"));
        }
        self.hash.write(&index.get().to_le_bytes());
        self.hash.write(data);
        (self.next, self.count) = (index.next(), self.count + 1);
        Ok(())
    }
}

/// Follows the log live, on a replica that does not lead, from the first record to the last. If that replica ends, it
/// continues at another one, at the same index: the same index is the same record everywhere.
pub(crate) fn follow(trio: &Trio, text: &Text, promises: &Promises) -> Result<u64> {
    let mut seen = Seen::from(text, promises, Index(1));
    while seen.count < promises.total() {
        if promises.failed() {
            return broken(format!("the appends ended after {} records", seen.count));
        }
        let Some(log) = trio.follower() else { return broken("no replica is left".into()) };
        if let Err(error) = follow_one(&log, &mut seen)
            && error.downcast_ref::<chiplog::Error>().is_none_or(|e| e.kind() != ErrorKind::Closed)
        {
            return Err(error);
        }
    }
    Ok(seen.count)
}

fn follow_one(log: &Log, seen: &mut Seen<'_>) -> Result<()> {
    log.wait_for(seen.next.previous(), PATIENCE)?;
    let mut reader = log.reader(Start::Index(seen.next))?;
    while seen.count < seen.promises.total() && !seen.promises.failed() {
        while let Some(record) = reader.next_record()? {
            seen.take(record.index, record.data)?;
        }
        reader.wait(Some(Duration::from_millis(100)))?;
    }
    Ok(())
}

/// Reads every replica from its first record to its last and compares them: all have the same records, and together
/// with the records discarded below `first` these are all that were ever confirmed. Returns how many records each has.
pub(crate) fn all_alike(trio: &Trio, text: &Text, promises: &Promises, first: Index) -> Result<u64> {
    let mut hashes = Vec::new();
    for log in trio.running() {
        let node = log.status().replica.node;
        // After the barrier this replica shows everything that a majority has confirmed by now.
        let last = log.barrier(PATIENCE)?;
        if (log.first_index(), last.get()) != (first, promises.total()) {
            let found = log.first_index();
            return broken(format!(
                "replica {node} has {found} to {last}, not {first} to {}",
                promises.total()
            ));
        }
        let mut seen = Seen::from(text, promises, first);
        let mut reader = log.reader(Start::First)?;
        while let Some(record) = reader.next_record()? {
            seen.take(record.index, record.data)?;
        }
        if seen.next <= last {
            return broken(format!("replica {node} ends before {}", seen.next));
        }
        hashes.push(seen.hash.finish());
    }
    if hashes.len() != 3 || hashes.iter().any(|hash| *hash != hashes[0]) {
        return broken(format!("the replicas differ: {hashes:x?}"));
    }
    Ok(promises.total() + 1 - first.get())
}

/// Checks that every replica answers a request below the first record with a clear error.
pub(crate) fn discarded(trio: &Trio, first: Index) -> Result<()> {
    for log in trio.running() {
        match log.read(first.previous()) {
            Err(error) if error.kind() == ErrorKind::Discarded => {}
            other => return broken(format!("a discarded record was answered with {other:?}")),
        }
    }
    Ok(())
}
