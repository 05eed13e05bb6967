//! The contents of the views' tables, as one number that is compared; and the expected contents, computed from the text
//! itself.
//!
//! Must not know: how a view works.

use crate::Result;
use rusqlite::{Connection, OpenFlags};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

/// The summary that a view prints at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) records: u64,
    pub(crate) distinct: u64,
    pub(crate) words: u64,
    pub(crate) last: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { records, distinct, words, last } = self;
        write!(f, "{records} records, {distinct} distinct words, {words} words, last index {last}")
    }
}

/// A hash over both tables' rows, in order.
#[derive(Default)]
struct Tables(DefaultHasher);

impl Tables {
    fn line(&mut self, index: u64, text: &[u8]) {
        ("line", index, text).hash(&mut self.0);
    }

    fn word(&mut self, word: &[u8], count: u64) {
        ("word", word, count).hash(&mut self.0);
    }
}

/// The expected summary and hash of a view of these records, which have the indexes from 1 on.
pub(crate) fn expected<'a>(records: impl Iterator<Item = &'a [u8]>) -> (Summary, u64) {
    let (mut tables, mut words) = (Tables::default(), BTreeMap::<Vec<u8>, u64>::new());
    let mut last = 0;
    for record in records {
        last += 1;
        tables.line(last, record);
        let mut word = Vec::new();
        for byte in record.iter().chain(b" ") {
            if byte.is_ascii_alphabetic() {
                word.push(byte.to_ascii_lowercase());
            } else if !word.is_empty() {
                *words.entry(std::mem::take(&mut word)).or_default() += 1;
            }
        }
    }
    words.iter().for_each(|(word, count)| tables.word(word, *count));
    let (distinct, words) = (words.len() as u64, words.values().sum());
    (Summary { records: last, distinct, words, last }, tables.0.finish())
}

/// The summary and hash of the tables `lines` and `words` in a view's file.
pub(crate) fn tables(db: &Path) -> Result<u64> {
    let read = || -> rusqlite::Result<u64> {
        let connection = Connection::open_with_flags(db, OpenFlags::SQLITE_OPEN_READ_WRITE)?; // merges a write-ahead log
        let mut tables = Tables::default();
        let mut lines = connection.prepare("SELECT idx, CAST(text AS BLOB) FROM lines ORDER BY 1")?;
        let mut rows = lines.query(())?;
        while let Some(row) = rows.next()? {
            tables.line(row.get(0)?, &row.get::<_, Vec<u8>>(1)?);
        }
        let mut words = connection.prepare("SELECT CAST(word AS BLOB), count FROM words ORDER BY 1")?;
        let mut rows = words.query(())?;
        while let Some(row) = rows.next()? {
            tables.word(&row.get::<_, Vec<u8>>(0)?, row.get(1)?);
        }
        Ok(tables.0.finish())
    };
    read().map_err(|e| format!("{}: {e}", db.display()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(dir: &Path, words: &str) -> u64 {
        let db = dir.join(words.len().to_string());
        let connection = Connection::open(&db).unwrap();
        let tables = "CREATE TABLE lines (idx INTEGER PRIMARY KEY, text TEXT NOT NULL);
            CREATE TABLE words (word TEXT PRIMARY KEY, count INTEGER NOT NULL);
            INSERT INTO lines VALUES (2, ''), (1, 'To be, to');";
        connection.execute_batch(&format!("{tables} INSERT INTO words VALUES {words};")).unwrap();
        tables_of(&db)
    }

    fn tables_of(db: &Path) -> u64 {
        tables(db).unwrap()
    }

    #[test]
    fn tables_are_equal_when_their_rows_are() {
        let dir = tempfile::tempdir().unwrap();
        let (summary, hash) = expected([&b"To be, to"[..], b""].into_iter());
        assert_eq!(summary.to_string(), "2 records, 2 distinct words, 3 words, last index 2");
        assert_eq!(made(dir.path(), "('to', 2), ('be', 1)"), hash);
        assert_ne!(made(dir.path(), "('to', 2), ('be', 10)"), hash);
        assert_ne!(made(dir.path(), "('to', 2)"), hash);
    }
}
