"""A view that embeds a follower: a SQLite table and a word index, made from the log of a cluster of three. The text is
Newton's Opticks (1730), line by line.

    python examples/view.py            # the demo: appends, kills the leader, restarts the view, checks it

The view saves its position in the same transaction as its data, so it is correct whenever it is killed. It continues at
the next record, from its own copy, which requests from the servers only what it lacks.
"""

import re
import sqlite3
import tempfile
import threading
from pathlib import Path

import chiplog
from servers import Servers

WORD = re.compile(r"[a-z]+")


class View:
    """Lines by their index, and the lines of each word."""

    def __init__(self, dir: Path, cluster: list[str]) -> None:
        self.follower = chiplog.Follower(dir / "copy", cluster=cluster)
        self.tables = sqlite3.connect(dir / "view.sqlite", isolation_level=None, check_same_thread=False)
        self.tables.execute("PRAGMA journal_mode = WAL")
        self.tables.execute("CREATE TABLE IF NOT EXISTS line (place INTEGER PRIMARY KEY, time INTEGER, text TEXT)")
        self.tables.execute(
            "CREATE TABLE IF NOT EXISTS word (word TEXT, place INTEGER, PRIMARY KEY (word, place)) WITHOUT ROWID"
        )
        self.tables.execute("CREATE TABLE IF NOT EXISTS applied (place INTEGER)")

    @property
    def applied(self) -> int:
        """Returns the last record in the tables."""
        row = self.tables.execute("SELECT place FROM applied").fetchone()
        return int(row[0]) if row else 0

    def apply(self, batch: chiplog.Batch) -> None:
        """Applies a batch, all of it or nothing."""
        self.tables.execute("BEGIN IMMEDIATE")
        for record in batch:
            text = record.decode()
            self.tables.execute("INSERT INTO line VALUES (?, ?, ?)", (record.index, record.timestamp, text))
            words = {(word, record.index) for word in WORD.findall(text.lower())}
            self.tables.executemany("INSERT INTO word VALUES (?, ?)", words)
        self.tables.execute("DELETE FROM applied")
        self.tables.execute("INSERT INTO applied VALUES (?)", (batch.last,))
        self.tables.execute("COMMIT")

    def start_over(self) -> None:
        """Records that this view lacks were discarded everywhere: it starts again with the remaining ones."""
        self.tables.executescript("BEGIN; DELETE FROM line; DELETE FROM word; DELETE FROM applied; COMMIT")

    def run(self) -> None:
        """Follows the log until the follower is closed."""
        if self.applied:
            self.follower.wait_for(self.applied)  # a copy that lost its last records receives them again
        start: int | chiplog.Start = self.applied + 1 if self.applied else chiplog.Start.first()
        while True:
            try:
                for batch in self.follower.batches(start, follow=True):
                    self.apply(batch)
            except chiplog.DiscardedError:
                self.start_over()
                start = chiplog.Start.first()
            except chiplog.ClosedError:
                return

    def close(self) -> None:
        self.follower.close()


def follow(dir: Path, cluster: list[str]) -> tuple[View, threading.Thread]:
    view = View(dir, cluster)
    thread = threading.Thread(target=view.run, name="view")
    thread.start()
    return view, thread


def wait_until(view: View, index: int) -> None:
    """Waits until the tables have a record."""
    view.follower.wait_for(index, timeout=60)
    while view.applied < index:
        threading.Event().wait(0.01)


def main() -> None:
    text = (Path(__file__).resolve().parents[2] / "examples/data/opticks.txt").read_text()
    lines = [line for line in text.splitlines() if line.strip()]
    with Servers() as servers, tempfile.TemporaryDirectory() as scratch:
        dir = Path(scratch)
        print(f"three servers at {', '.join(servers.clients)}")
        with chiplog.Client(servers.clients) as client, client.producer() as producer:
            view, thread = follow(dir, servers.clients)
            half = len(lines) // 2
            for line in lines[:half]:
                producer.send(line.encode())
            producer.flush()
            wait_until(view, half // 2)

            leader = servers.leader()
            servers.kill(leader)
            print(f"the leader, server {leader}, was killed; the view has {view.applied:,} records")

            view.close()
            thread.join()
            saved = view.applied
            view, thread = follow(dir, servers.clients)
            print(f"the view was restarted and continues behind record {saved:,}")

            for line in lines[half:]:
                producer.send(line.encode())
            producer.flush()
            last = client.info().last
            wait_until(view, last)
            events = []
            try:
                while True:
                    events.append(view.follower.next_event(timeout=0).kind)
            except chiplog.TimeoutError:
                pass
            view.close()
            thread.join()

        rows = view.tables.execute("SELECT text FROM line ORDER BY place").fetchall()
        assert [row[0] for row in rows] == lines, "the table differs from the log"
        word = "light"
        places = view.tables.execute("SELECT count(*) FROM word WHERE word = ?", (word,)).fetchone()[0]
        assert places == sum(word in WORD.findall(line.lower()) for line in lines), "the word index differs from the log"
        print(f"all {len(rows):,} records are in the table, in order, each once; {word!r} is in {places:,} of them")
        print(f"events of the follower since its restart: {', '.join(events)}")


if __name__ == "__main__":
    main()
