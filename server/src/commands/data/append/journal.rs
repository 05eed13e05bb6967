//! Journal: the session file, which lets an interrupted command continue where it stopped.
//!
//! ```text
//! chiplog session 1                        the format of the file
//! session 42 31f0…                         a session of this log; its batches are numbered from 1
//! cut 1 1000 5c1f…                         batch 1 ends at record 1000 of the input; checksum of the input up to there
//! cut 2 1400 09ab…
//! acked 1                                  batch 1 is in the log
//! refused                                  the log is full: the open batches, here batch 2, are not in it
//! again                                    they are sent again
//! session 57 31f0…                         a new session: every batch of the one before is in the log
//! ```
//!
//! A batch is cut, written to the file and synced before it is sent. If this process dies, the next one sends
//! the same records under the same number, and the log stores them once.
//!
//! Invariants:
//! - Batches are cut in the order of the input, 1, 2, 3 …, and acknowledged in that order.
//! - One process at a time holds the file.
//! - An incomplete last line counts as not written: a batch is sent only after its line was synced.
//!
//! Must not know: servers.

use crate::common::failure::{Failure, Result};
use chiplog::{ErrorKind, LogId, SessionId};
use crc_fast::{CrcAlgorithm, Digest};
use rustix::fs::{FlockOperation, flock};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const FORM: &str = "chiplog session 1";

/// A cut batch: its last record in the input, and the checksum of the input up to there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) number: u64,
    pub(super) records: u64,
    sum: u64,
}

/// The contents of a session file.
#[derive(Debug, Default, PartialEq, Eq)]
struct State {
    session: Option<(SessionId, LogId)>,
    /// The newest batch that is in the log.
    acked: Option<Cut>,
    /// The batches cut after it.
    open: VecDeque<Cut>,
    /// The servers refused these, and they were not sent since.
    is_refused: bool,
    /// The records, and their checksum, up to the last batch of any session that is in the log.
    done: (u64, u64),
}

/// A session file that this process has locked.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    state: State,
    /// A write failed: the last line may be there in part, and nothing may follow it. Or a sync did: the system reports that once.
    failed: Option<String>,
}

/// The running checksum of the input: of the records and of where each ends.
#[derive(Debug)]
pub(super) struct Sum {
    digest: Digest,
    pub(super) records: u64,
}

impl Sum {
    pub(super) fn new() -> Self {
        Self { digest: Digest::new(CrcAlgorithm::Crc64Nvme), records: 0 }
    }

    pub(super) fn add(&mut self, record: &[u8]) {
        self.digest.update(&(record.len() as u64).to_le_bytes());
        self.digest.update(record);
        self.records += 1;
    }

    pub(super) fn value(&self) -> u64 {
        self.digest.finalize()
    }
}

impl State {
    fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != FORM {
            return None;
        }
        let mut state = Self { done: (0, Sum::new().value()), ..Self::default() };
        for line in lines {
            state.line(line)?;
        }
        Some(state)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        self.is_refused = line == "refused";
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["session", id, log] if self.open.is_empty() => {
                let log = LogId(u128::from_str_radix(log, 16).ok()?);
                self.session = Some((SessionId(id.parse().ok()?), log));
                self.acked = None;
            }
            ["cut", number, records, sum] if self.session.is_some() => {
                let cut =
                    Cut { number: number.parse().ok()?, records: records.parse().ok()?, sum: hex(sum)? };
                let before = self.open.back().or(self.acked.as_ref());
                let (due, from) = before.map_or((1, self.done.0), |cut| (cut.number + 1, cut.records));
                if cut.number != due || cut.records <= from {
                    return None;
                }
                self.open.push_back(cut);
            }
            ["acked", number] => {
                let cut = self.open.pop_front()?;
                if number.parse() != Ok(cut.number) {
                    return None;
                }
                (self.acked, self.done) = (Some(cut), (cut.records, cut.sum));
            }
            ["refused" | "again"] if self.session.is_some() => {}
            _ => return None,
        }
        Some(())
    }
}

impl Journal {
    /// Opens or creates the file and reads it.
    ///
    /// # Errors
    /// `Locked`: another process holds it. `InvalidArgument`: it is not a session file. `Io`.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let io = |doing: &str, e: &std::io::Error| Failure::io(doing, path, e);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|e| io("open", &e))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| match e {
            rustix::io::Errno::WOULDBLOCK => {
                let what = format!("another process is appending with session file {}", path.display());
                Failure::new(ErrorKind::Locked, what)
            }
            e => io("lock", &e.into()),
        })?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|e| io("read", &e))?;
        // Text after the last newline was not written completely.
        let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let text = std::str::from_utf8(&bytes[..whole]).unwrap_or("?");
        let begun = FORM.as_bytes().starts_with(&bytes);
        let state = if whole == 0 && begun { State::read(FORM) } else { State::read(text) };
        let Some(state) = state else {
            let what = format!("{} is not a session file, or it is damaged", path.display());
            return Err(Failure::usage(what));
        };
        file.set_len(whole as u64).map_err(|e| io("cut", &e))?;
        file.seek(SeekFrom::End(0)).map_err(|e| io("write", &e))?;
        let mut journal = Self { path: path.to_owned(), file, state, failed: None };
        if whole == 0 {
            journal.write(&format!("{FORM}\n"))?;
        }
        Ok(journal)
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.check()?;
        self.file.write_all(text.as_bytes()).map_err(|e| {
            self.failed = Some(e.to_string());
            Failure::io("write", &self.path, &e)
        })
    }

    fn check(&self) -> Result<()> {
        let Some(why) = &self.failed else { return Ok(()) };
        let what = format!("session file {} could not be written before: {why}", self.path.display());
        Err(Failure::new(ErrorKind::Io, what))
    }

    /// Makes all lines durable.
    ///
    /// # Errors
    /// `Io`, also after a line could not be written: what the file says is not all that is in the log.
    pub(super) fn sync(&mut self) -> Result<()> {
        self.check()?;
        self.file.sync_data().map_err(|e| {
            self.failed = Some(e.to_string());
            Failure::io("sync", &self.path, &e)
        })
    }

    /// The number of records of the input that are in the log.
    pub(super) fn done(&self) -> u64 {
        self.state.done.0
    }

    /// The session to continue, of this log, and the number of its next batch. None: every cut batch is in
    /// the log, so a new session works as well and cannot have expired.
    ///
    /// # Errors
    /// `InvalidArgument`: the file belongs to another log.
    pub(super) fn session(&self, log: LogId) -> Result<Option<(SessionId, u64)>> {
        let Some((session, known)) = self.state.session else { return Ok(None) };
        if known != log {
            let hex = |id: LogId| chiplog_net::wire::ids::to_hex(id.get());
            let (path, known, log) = (self.path.display(), hex(known), hex(log));
            let what =
                format!("session file {path} belongs to log {known}, but these servers have log {log}");
            return Err(Failure::usage(what));
        }
        Ok(self.state.open.front().map(|cut| (session, cut.number)))
    }

    /// Starts a new session. Durable when it returns.
    pub(super) fn begin(&mut self, session: SessionId, log: LogId) -> Result<()> {
        let log_hex = chiplog_net::wire::ids::to_hex(log.get());
        self.write(&format!("session {session} {log_hex}\n"))?;
        self.sync()?;
        (self.state.session, self.state.acked) = (Some((session, log)), None);
        Ok(())
    }

    /// The batches that were cut earlier and are not known to be in the log, in order.
    pub(super) fn open_cuts(&self) -> Vec<Cut> {
        self.state.open.iter().copied().collect()
    }

    /// Records that the servers refused all open batches: none of them is in the log.
    pub(super) fn refused(&mut self) -> Result<()> {
        self.write("refused\n")?;
        self.state.is_refused = true;
        self.sync()
    }

    /// Before the open batches are sent again. Returns how many of them may be in the log.
    pub(super) fn send_again(&mut self) -> Result<usize> {
        if !std::mem::take(&mut self.state.is_refused) {
            return Ok(self.state.open.len());
        }
        self.write("again\n")?;
        self.sync()?;
        Ok(0)
    }

    /// Whether the input so far equals the input when this batch was cut.
    pub(super) fn is_as_before(cut: &Cut, sum: &Sum) -> bool {
        (cut.records, cut.sum) == (sum.records, sum.value())
    }

    /// Whether the input so far equals the part that is in the log.
    pub(super) fn is_done_as_before(&self, sum: &Sum) -> bool {
        self.state.done == (sum.records, sum.value())
    }

    /// Cuts a batch after the records read so far. Durable when it returns: the batch may then be sent.
    pub(super) fn cut(&mut self, sum: &Sum) -> Result<()> {
        let before = self.state.open.back().or(self.state.acked.as_ref());
        let number = before.map_or(1, |cut| cut.number + 1);
        let cut = Cut { number, records: sum.records, sum: sum.value() };
        self.write(&format!("cut {} {} {:016x}\n", cut.number, cut.records, cut.sum))?;
        self.sync()?;
        self.state.open.push_back(cut);
        Ok(())
    }

    /// Records that the oldest open batch is in the log.
    pub(super) fn acked(&mut self) -> Result<()> {
        let Some(cut) = self.state.open.pop_front() else {
            return Err(Failure::new(ErrorKind::Io, "more batches were confirmed than were sent"));
        };
        (self.state.acked, self.state.done) = (Some(cut), (cut.records, cut.sum));
        self.write(&format!("acked {}\n", cut.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: LogId = LogId(7);

    fn sum(records: &[&str]) -> Sum {
        let mut sum = Sum::new();
        records.iter().for_each(|r| sum.add(r.as_bytes()));
        sum
    }

    #[test]
    fn cuts_and_acknowledgements_survive_a_reopen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("session");
        let mut journal = Journal::open(&path).unwrap();
        assert_eq!((journal.done(), journal.session(LOG).unwrap()), (0, None));
        journal.begin(SessionId(42), LOG).unwrap();
        journal.cut(&sum(&["a"])).unwrap();
        journal.cut(&sum(&["a", "b", "c"])).unwrap();
        journal.acked().unwrap();
        assert_eq!(
            Journal::open(&path).unwrap_err().exit(),
            crate::common::exit::Exit::Retry,
            "it is in use"
        );
        drop(journal);

        let mut journal = Journal::open(&path).unwrap();
        assert_eq!((journal.done(), journal.session(LOG).unwrap()), (1, Some((SessionId(42), 2))));
        assert!(journal.session(LogId(8)).is_err());
        assert!(journal.is_done_as_before(&sum(&["a"])) && !journal.is_done_as_before(&sum(&["A"])));
        let open = journal.open_cuts();
        assert!(open.len() == 1 && Journal::is_as_before(&open[0], &sum(&["a", "b", "c"])));
        assert!(
            !Journal::is_as_before(&open[0], &sum(&["a", "bc", ""])),
            "the checksum includes where records end"
        );
        journal.cut(&sum(&["a", "b", "c", "d"])).unwrap();
        journal.acked().unwrap();
        journal.acked().unwrap();
        assert!(journal.acked().is_err());
        // Every batch is in the log: a new session starts, whose batches count from 1.
        assert_eq!((journal.done(), journal.session(LOG).unwrap()), (4, None));
        journal.begin(SessionId(43), LOG).unwrap();
        journal.cut(&sum(&["a", "b", "c", "d", "e"])).unwrap();
        drop(journal);
        let journal = Journal::open(&path).unwrap();
        assert_eq!((journal.done(), journal.session(LOG).unwrap()), (4, Some((SessionId(43), 1))));
    }

    #[test]
    fn refused_batches_are_in_doubt_once_they_are_sent_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("session");
        let mut journal = Journal::open(&path).unwrap();
        journal.begin(SessionId(42), LOG).unwrap();
        journal.cut(&sum(&["a"])).unwrap();
        journal.cut(&sum(&["a", "b"])).unwrap();
        let reopened = |journal: Journal| {
            drop(journal);
            Journal::open(&path).unwrap()
        };
        journal = reopened(journal);
        assert_eq!(journal.send_again().unwrap(), 2);
        journal.refused().unwrap();
        journal = reopened(journal);
        assert_eq!((journal.open_cuts().len(), journal.send_again().unwrap()), (2, 0));
        journal = reopened(journal);
        assert_eq!(journal.send_again().unwrap(), 2, "the process that sent them again was killed");
        journal.refused().unwrap();
        assert_eq!(journal.send_again().unwrap(), 0);
        journal.acked().unwrap();
        journal = reopened(journal);
        assert_eq!((journal.done(), journal.send_again().unwrap()), (1, 1));
    }

    #[test]
    fn incomplete_last_line_is_ignored_and_nonsense_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("session");
        let mut journal = Journal::open(&path).unwrap();
        journal.begin(SessionId(42), LOG).unwrap();
        journal.cut(&sum(&["a"])).unwrap();
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        for keep in 0..=whole.len() {
            std::fs::write(&path, &whole[..keep]).unwrap();
            let journal = Journal::open(&path).unwrap();
            assert_eq!(journal.open_cuts().len(), usize::from(keep == whole.len()), "{keep} bytes");
        }
        for wrong in [
            "something else\n",
            "chiplog session 2\n",
            "chiplog session 1\ncut 1 1 0\n",
            "chiplog session 1\nsession 4 7\ncut 2 1 0\n",
            "chiplog session 1\nsession 4 7\ncut 1 0 0\n",
            "chiplog session 1\nsession 4 7\nacked 1\n",
            "chiplog session 1\nsession 4 7\ncut 1 1 0\nsession 5 7\n",
            "chiplog session 1\n\n",
        ] {
            std::fs::write(&path, wrong).unwrap();
            assert_eq!(Journal::open(&path).unwrap_err().exit(), crate::common::exit::Exit::Usage, "{wrong}");
        }
    }

    /// A line that was written in part was followed by others, so that the file could not be read again; or the session was closed
    /// although the file says that batches are open.
    #[test]
    fn nothing_follows_a_line_that_could_not_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&dir.path().join("session")).unwrap();
        journal.begin(SessionId(42), LOG).unwrap();
        journal.cut(&sum(&["a"])).unwrap();
        journal.cut(&sum(&["a", "b"])).unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let file = std::mem::replace(&mut journal.file, full);
        assert!(journal.acked().is_err());
        journal.file = file; // there is room again
        assert!(journal.acked().is_err() && journal.sync().is_err());
        drop(journal);
        let journal = Journal::open(&dir.path().join("session")).unwrap();
        assert_eq!((journal.done(), journal.open_cuts().len()), (0, 2));
    }
}
