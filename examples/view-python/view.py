"""A view of a log, in Python: a table of lines and an index of words in SQLite, made from a cluster's records. It has a copy
of the log in its own process. Any server feeds it, and it continues at another one when that dies.

    python view.py --cluster 127.0.0.1:7411 --dir copy --db view.db --until 1000

The changes of a run of records and the index of its last one are written in one transaction. Whenever this is killed, the file
holds the records up to that index, each once. The same view exists in other languages; all end with the same summary.
"""

import argparse
import re
import sqlite3
import sys
import time
from collections import Counter

import chiplog

SCHEMA = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    CREATE TABLE IF NOT EXISTS lines (idx INTEGER PRIMARY KEY, text TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
    -- One row: which log the tables are of, and the last record that is in them.
    CREATE TABLE IF NOT EXISTS position (id INTEGER PRIMARY KEY CHECK (id = 1), log TEXT NOT NULL, applied INTEGER NOT NULL);
"""
WORD = re.compile(rb"[A-Za-z]+")
TELL_SECONDS = 0.5


class View:
    """The tables, and their position."""

    def __init__(self, file: str) -> None:
        self.tables = sqlite3.connect(file, isolation_level=None)
        self.tables.executescript(SCHEMA)
        row = self.tables.execute("SELECT log, applied FROM position").fetchone()
        self.log: str | None = row[0] if row else None
        self.applied: int = row[1] if row else 0

    def apply(self, log: str, batch: chiplog.Batch, until: int) -> None:
        """Applies the records of a batch up to `until`, all of them or none. The bytes are stored as they arrived."""
        if self.log is not None and batch.first != self.applied + 1:
            raise SystemExit(f"view: record {batch.first} came where {self.applied + 1} was due")
        records = batch.copies()[: max(0, until - batch.first + 1)]
        if not records:
            raise SystemExit(f"view: the log begins behind record {until}: nothing of what was asked for is there")
        last = batch.first + len(records) - 1
        words = Counter(word.lower() for record in records for word in WORD.findall(record))
        self.tables.execute("BEGIN IMMEDIATE")
        self.tables.executemany("INSERT INTO lines VALUES (?, CAST(? AS TEXT))", enumerate(records, batch.first))
        self.tables.executemany(
            "INSERT INTO words VALUES (?, ?) ON CONFLICT (word) DO UPDATE SET count = count + excluded.count",
            [(word.decode(), count) for word, count in words.items()],
        )
        self.tables.execute("INSERT OR REPLACE INTO position VALUES (1, ?, ?)", (log, last))
        self.tables.execute("COMMIT")
        self.log, self.applied = log, last

    def summary(self) -> str:
        """The summary of the whole tables."""
        (records,) = self.tables.execute("SELECT count(*) FROM lines").fetchone()
        distinct, words = self.tables.execute("SELECT count(*), coalesce(sum(count), 0) FROM words").fetchone()
        return f"{records} records, {distinct} distinct words, {words} words, last index {self.applied}"


def follow(view: View, copy: chiplog.Follower, until: int) -> None:
    """Applies the records that arrive, up to record `until`."""
    log = str(copy.log_status().log_id)
    if view.log is not None and view.log != log:
        raise SystemExit(f"view: the servers have log {log}, and the tables are of log {view.log}")
    if view.log is not None:
        copy.wait_for(view.applied)  # a copy that was made again must catch up with the view first
    elif (first := copy.log_status().first_index) > 1:
        print(f"discarded: records 1 to {first - 1} are gone; this view begins with record {first}", flush=True)
    start = chiplog.Start.first() if view.log is None else view.applied + 1
    told, told_at = view.applied, 0.0
    batches = copy.batches(start, follow=True)
    while view.applied < until:
        if batches.reader.wait(TELL_SECONDS):
            view.apply(log, next(batches), until)
        # Also for the last records before a pause.
        if view.applied > told and (view.applied >= until or time.monotonic() - told_at >= TELL_SECONDS):
            told, told_at = view.applied, time.monotonic()
            print(f"applied index {told}, fed by {copy.status().server or 'no server at the moment'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="A view of a log: a table of lines and an index of words in SQLite.")
    parser.add_argument("--cluster", required=True, metavar="HOST:PORT[,…]", help="servers; one that runs is enough")
    parser.add_argument("--db", required=True, metavar="FILE", help="the view's SQLite file; created if it is missing")
    parser.add_argument("--dir", required=True, help="directory of the copy of the log; created if it is missing")
    parser.add_argument("--until", type=int, default=sys.maxsize, metavar="INDEX", help="end once this record is applied")
    arguments = parser.parse_args()
    view = View(arguments.db)
    if view.applied < arguments.until:
        # A new view takes the first existing record; one that has begun needs the very next record.
        start = chiplog.Start.first() if view.log is None else view.applied + 1
        try:
            with chiplog.Follower(arguments.dir, arguments.cluster.split(","), start) as copy:
                follow(view, copy, arguments.until)
        except chiplog.DiscardedError as error:
            what = f"record {view.applied + 1}, which this view needs next, is gone"
            raise SystemExit(f"view: discarded: {what} ({error}); it has to be made again") from error
        except chiplog.Error as error:
            raise SystemExit(f"view: {error}") from error
    print(view.summary())


if __name__ == "__main__":
    main()
