//! The view: two tables that are made from the log, and its position, in one SQLite file.
//!
//! Must not know: where records come from.
//!
//! Invariants:
//! - The changes of a run of records and the index of its last one are written in one transaction. Whenever the program
//!   dies, the file holds the records up to `applied`, each once, and none after them.
//! - `applied` increases by one a record; a new view can begin after records that are gone.

use crate::words::words;
use chiplog::Index;
use rusqlite::{Connection, OptionalExtension as _, Result};
use std::collections::HashMap;
use std::path::Path;

const SCHEMA: &str = "
    -- Readers do not hold up the view, nor it them. A power cut can take the last transactions, whole ones, and the
    -- index with them: the log gives their records again.
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    CREATE TABLE IF NOT EXISTS lines (idx INTEGER PRIMARY KEY, text TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
    -- One row: which log the tables are of, and the last record that is in them.
    CREATE TABLE IF NOT EXISTS position (id INTEGER PRIMARY KEY CHECK (id = 1), log TEXT NOT NULL, applied INTEGER NOT NULL);
";

/// The file, open.
pub(crate) struct View {
    connection: Connection,
    /// Empty: of no log yet.
    log: String,
    applied: Index,
}

/// A summary of the tables.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) records: u64,
    pub(crate) distinct: u64,
    pub(crate) words: u64,
    pub(crate) last: Index,
}

impl View {
    /// Opens the file, or creates it.
    pub(crate) fn open(file: &Path) -> Result<Self> {
        let connection = Connection::open(file)?;
        connection.execute_batch(SCHEMA)?;
        let position = connection
            .query_row("SELECT log, applied FROM position", (), |row| Ok((row.get(0)?, Index(row.get(1)?))));
        let (log, applied) = position.optional()?.unwrap_or_default();
        Ok(Self { connection, log, applied })
    }

    /// The last record in the tables; 0: none.
    pub(crate) fn applied(&self) -> Index {
        self.applied
    }

    /// The log that the tables are of.
    pub(crate) fn log(&self) -> Option<&str> {
        (!self.log.is_empty()).then_some(&*self.log)
    }

    /// Applies consecutive records of this log, from `first` on.
    pub(crate) fn apply<'a>(
        &mut self,
        log: &str,
        first: Index,
        records: impl Iterator<Item = &'a [u8]>,
    ) -> Result<()> {
        let change = self.connection.transaction()?;
        let (mut counts, mut next) = (HashMap::<Vec<u8>, i64>::new(), first);
        {
            // The bytes as they arrived, which a bound text need not be.
            let mut line =
                change.prepare_cached("INSERT INTO lines (idx, text) VALUES (?1, CAST(?2 AS TEXT))")?;
            for record in records {
                line.execute((next.get(), record))?;
                words(record).for_each(|word| *counts.entry(word).or_default() += 1);
                next = next.next();
            }
            let mut count = change.prepare_cached(
                "INSERT INTO words (word, count) VALUES (CAST(?1 AS TEXT), ?2)
                 ON CONFLICT (word) DO UPDATE SET count = count + excluded.count",
            )?;
            for (word, more) in &counts {
                count.execute((word, more))?;
            }
            let mut position = change
                .prepare_cached("INSERT OR REPLACE INTO position (id, log, applied) VALUES (1, ?1, ?2)")?;
            position.execute((log, next.previous().get()))?;
        }
        change.commit()?;
        (self.log, self.applied) = (log.to_owned(), next.previous());
        Ok(())
    }

    /// Counts the records and words.
    pub(crate) fn summary(&self) -> Result<Summary> {
        let records = self.connection.query_row("SELECT count(*) FROM lines", (), |row| row.get(0))?;
        let (distinct, words) =
            self.connection.query_row("SELECT count(*), coalesce(sum(count), 0) FROM words", (), |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        Ok(Summary { records, distinct, words, last: self.applied })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a change that was interrupted would be in the tables twice after the retry.
    #[test]
    fn a_change_that_fails_leaves_nothing_and_the_rest_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("view.db");
        let mut view = View::open(&file).unwrap();
        assert_eq!((view.applied(), view.log()), (Index(0), None));
        view.apply("a log", Index(1), [&b"To be, or"[..], b"", b"not TO be\xff"].into_iter()).unwrap();
        let had = view.summary().unwrap();
        assert_eq!(had, Summary { records: 3, distinct: 4, words: 6, last: Index(3) });
        // Record 3 exists: the second line of this change fails, and the first one is rolled back with it.
        assert!(view.apply("a log", Index(2), [&b"x"[..], b"y"].into_iter()).is_err());
        assert_eq!(view.summary().unwrap(), had);
        drop(view);
        let view = View::open(&file).unwrap();
        assert_eq!((view.applied(), view.log(), view.summary().unwrap()), (Index(3), Some("a log"), had));
        let bytes: Vec<u8> = view
            .connection
            .query_row("SELECT CAST(text AS BLOB) FROM lines WHERE idx = 3", (), |row| row.get(0))
            .unwrap();
        assert_eq!(bytes, b"not TO be\xff", "as it went in");
    }
}
