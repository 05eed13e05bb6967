"""Options and starts: plain values, to be pickled and compared. A field that is None leaves the log's default, which
is given here as of this version. Times are in seconds, sizes in bytes."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from ._fields import documented, needed, option


@dataclass(frozen=True)
class Start:
    """Where a reader begins. Made by `first`, `next`, `index`, `last` and `since`; a plain index stands for
    `Start.index(n)`. Nothing is looked up, and what it is given is not checked, before a reader begins there."""

    kind: Literal["first", "next", "index", "last", "since"]
    value: int = 0

    @classmethod
    def first(cls) -> "Start":
        """The first record that is not discarded."""
        return cls("first")

    @classmethod
    def next(cls) -> "Start":
        """The next record to come."""
        return cls("next")

    @classmethod
    def index(cls, index: int) -> "Start":
        """The record at `index`, from 1, which may be the next one to come.

        Beyond that the reader raises `OutOfRangeError`, below the first record `DiscardedError`."""
        return cls("index", index)

    @classmethod
    def last(cls, count: int) -> "Start":
        """`count` records before the end, from 0; fewer if there are not so many."""
        return cls("last", count)

    @classmethod
    def since(cls, time: datetime | int) -> "Start":
        """The first record that the log took at `time` or later: a datetime, or milliseconds since 1970.

        A datetime without a zone is in local time. Where all records are older, it is the next one to come."""
        if isinstance(time, datetime):
            time = int(time.timestamp() * 1000)
        return cls("since", time)


_TIME = "finite seconds, from 0"
_SOME_TIME = "finite seconds, from 0.001"
_BACKOFF = "Twice as long after each further failure, up to backoff_max."
_WINDOW = "bytes, up to 2,147,483,647"
_TOKEN = "text, printable ASCII"


@documented
@dataclass(frozen=True, kw_only=True)
class Options:
    """How a log is opened. What is None has its default; `Log.options` tells what is in force.

    A value out of its bounds is an `InvalidArgumentError` when the log is opened, one of another type a `TypeError`."""

    create: bool | None = option("True or False", "True", "Makes a new log where the directory holds none.")
    segment_bytes: int | None = option(
        "bytes, 65,536 (64 KiB) to 1,073,741,824 (1 GiB)",
        "67,108,864 (64 MiB)",
        "Size of a segment file; a log takes at least three of them on disk. The defaults that depend on it (of the "
        "largest record, batch and block, and of sessions) come down with it.",
    )
    capacity_bytes: int | None = option(
        "bytes, at least two segments",
        "None: until the disk is full",
        "The most bytes of retained records; beyond it appends raise FullError.",
    )
    record_bytes_max: int | None = option(
        "bytes, 1 to what batch_bytes_max has room for", "16,777,216 (16 MiB)", "The largest record."
    )
    batch_bytes_max: int | None = option(
        "bytes, 1,024 to what a segment has room for, at most 256 MiB", "33,554,432 (32 MiB)", "The largest batch."
    )
    block_bytes_max: int | None = option(
        "bytes, 4,096 to what a segment has room for",
        "4,194,304 (4 MiB)",
        "How much one write gathers. A single larger batch is written by itself.",
    )
    queue_bytes_max: int | None = option(
        "bytes, batch_bytes_max to 2^40", "67,108,864 (64 MiB)", "Bytes that may wait to be written; beyond it appends wait."
    )
    queue_appends_max: int | None = option(
        "a number of appends, 1 to 16,777,216", "65,536", "Appends that may wait to be written; beyond it appends wait."
    )
    queue_timeout: float | None = option(
        _TIME, "60", "How long an append waits for room in the queue before it raises BusyError."
    )
    read_mode: Literal["map", "read"] | None = option(
        '"map" or "read"', '"map"', 'How readers get at the bytes: "map": slices of mapped files; "read": copies by `pread`.'
    )
    prefetch_bytes: int | None = option(
        "bytes, 0 to 1,073,741,824", "8,388,608 (8 MiB)", "How far a reader reads ahead; 0 leaves it to the kernel."
    )
    retention_bytes: int | None = option(
        "bytes, at least two segments",
        "None: keep all",
        "Keep at most about this many bytes: whole segments are discarded from the front.",
    )
    retention_age: float | None = option(
        _SOME_TIME, "None: keep all", "Discard segments whose newest record is older."
    )
    sessions_max: int | None = option(
        "a number of sessions, 1 to 1,048,576, as far as an eighth of a segment has room",
        "4,096",
        "The most exactly-once sessions open at a time.",
    )
    session_window: int | None = option(
        "a number of appends, 1 to 1,024", "128", "How many of a session's latest appends the log remembers the indexes of."
    )
    session_idle_max: float | None = option(
        _SOME_TIME, "86,400 (a day)", "A session that sends nothing for so long expires."
    )


@documented
@dataclass(frozen=True, kw_only=True)
class Tls:
    """Whom a client trusts, and how it proves itself, all in PEM. `repr` shows nothing of it."""

    authority: bytes = field(metadata=needed("bytes, PEM", "Who has to have signed the servers' certificates."))
    certificate: bytes | None = option(
        "bytes, PEM, together with key", "None", "This client's certificate, where servers want one."
    )
    key: bytes | None = option("bytes, PEM, together with certificate", "None", "Its private key.")

    def __repr__(self) -> str:
        return "Tls(...)"


@documented
@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Deadlines and limits of a client. What is None has its default.

    A value out of its bounds is an `InvalidArgumentError` when the client connects, one of another type a `TypeError`."""

    log: str | None = option("text", "the servers' only one", "Which log, by its name.")
    timeout: float | None = option(_TIME, "30", "How long a call may take with all its attempts.")
    attempt_timeout: float | None = option(_TIME, "10", "How long one attempt may take.")
    connect_timeout: float | None = option(_TIME, "2", "How long a connection may take to come about.")
    probe_timeout: float | None = option(_TIME, "1", "How long a server is waited for when all are asked who leads.")
    backoff_min: float | None = option(_TIME, "0.01", f"The wait after a first failure. {_BACKOFF}")
    backoff_max: float | None = option(_TIME, "1", "The longest wait between attempts.")
    keep_alive: float | None = option(
        _TIME, "5", "After so long without a sign of the other side a connection is tested, and given up after as long again."
    )
    window_bytes: int | None = option(_WINDOW, "4,194,304 (4 MiB)", "Bytes that a server may send ahead on a stream.")
    tls: Tls | None = option("a chiplog.Tls", "None: without TLS", "Whom the client trusts, and how it proves itself.")
    token: str | None = option(
        _TOKEN, "None", "The token that is shown with every call, where servers want one.", repr=False
    )
    token_in_plain_text: bool | None = option(
        "True or False", "False", "Whether the token may go to other machines without TLS. If not, they are not asked."
    )


@documented
@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """Limits, deadlines and promises of a producer. What is None has its default.

    A value out of its bounds is an `InvalidArgumentError` when the producer is made, one of another type a `TypeError`."""

    linger: float | None = option(
        "finite seconds, from 0, less than delivery_timeout", "0", "How long a batch that is not full waits for more records."
    )
    batch_bytes: int | None = option(
        "bytes, 45 to 268,435,456 (256 MiB)",
        "262,144 (256 KiB)",
        "A batch goes when it is so large; a larger record goes alone.",
    )
    batch_records: int | None = option(
        "a number of records, 1 to 1,048,576", "1,048,576", "A batch goes when it has so many records."
    )
    codec: Literal["none", "lz4", "zstd"] | None = option(
        '"none", "lz4" or "zstd"', '"none"', "How batches are compressed."
    )
    buffer_bytes: int | None = option(
        "bytes, from 0", "33,554,432 (32 MiB)", "Bytes of records that are not acknowledged yet; beyond it callers wait."
    )
    block_max: float | None = option(_TIME, "60", "How long a caller waits for room before BusyError.")
    inflight_max: int | None = option(
        "a number of batches, 1 to 1,024", "32", "Batches under way at a time; with exactly_once no more than the log remembers."
    )
    exactly_once: bool | None = option(
        "True or False",
        "True",
        "Each record that is given is in the log once, in order, however often it is sent. False: what is sent again after a "
        "failure can be there twice, and out of order.",
    )
    session: tuple[int, int] | None = option(
        "a pair of integers: the session's id, and the number of its next batch, from 1; with exactly_once",
        "None: opens one",
        "Goes on in this session: for programs that keep what they send, and send it again after a restart. Give batches by "
        "submit_batch: each takes one number, and under the number that it had it is in the log once. See "
        "Client.open_session.",
    )
    request_timeout: float | None = option(
        "finite seconds, more than 0", "10", "Without an answer for so long the connection is given up, and batches are sent again."
    )
    delivery_timeout: float | None = option(
        "finite seconds, more than 0",
        "120",
        "A record that is not acknowledged for so long fails: as FullError, BusyError or TooManySessionsError if it was refused "
        "as such, and it surely is not in the log; else as TimeoutError, and it may be.",
    )
    full_max: float | None = option(_TIME, "5", "How long the log may be full before records fail as FullError.")
    exit_timeout: float | None = option(
        _TIME,
        "5",
        "How long a producer that was not closed goes on sending when the program ends. What is not acknowledged then is told "
        "on stderr, and as a ResourceWarning, with its number.",
    )


@documented
@dataclass(frozen=True, kw_only=True)
class ReaderOptions:
    """Where and how a reader over the network reads. What is None has its default.

    A value out of its bounds is an `InvalidArgumentError` when the reader is made, one of another type a `TypeError`."""

    leader: bool | None = option(
        "True or False, not with zone",
        "False: at any replica",
        "Reads at the leader: what was acknowledged is there at once.",
    )
    zone: str | None = option(
        "text, not with leader", "None: at any replica", "Reads at a replica of this zone, if one answers; else at any."
    )
    min_index: int | None = option(
        "an index, from 0", "0", "A replica that has not come to this record is waited for: for reading what was just written."
    )
    keep_alive: float | None = option(
        "finite seconds, from 0.01",
        "3",
        "How often an idle server says that it is there. One that is silent for three times as long is left.",
    )
    timeout: float | None = option(_TIME, "30", "How long servers are tried before an error is raised.")


_BOUNDED = "seconds, 0.001 to 86,400"


@documented
@dataclass(frozen=True, kw_only=True)
class FollowerOptions:
    """Deadlines and limits of a follower, and those of its files. What is None has its default.

    A value out of its bounds is an `InvalidArgumentError` when the follower is opened, one of another type a `TypeError`."""

    files: Options | None = option(
        "a chiplog.Options", "Options()", "Those of the copy's own files, as how large they are and what is kept."
    )
    log: str | None = option("text", "the servers' only one", "Which log, by its name.")
    zone: str | None = option("text", "None: no zone", "A server of this zone is preferred.")
    tls: Tls | None = option("a chiplog.Tls", "None: without TLS", "Whom the follower trusts, and how it proves itself.")
    token: str | None = option(_TOKEN, "None", "The token that is shown to servers, where they want one.", repr=False)
    token_in_plain_text: bool | None = option(
        "True or False", "False", "Whether the token may go to other machines without TLS. If not, they are not asked."
    )
    open_timeout: float | None = option(
        _TIME, "30", "How long opening an empty directory waits for a server. One that holds a copy needs none."
    )
    keep_alive: float | None = option(
        _BOUNDED,
        "3",
        "How often an idle server says that it is there. One that is silent for three times as long is left.",
    )
    compare_interval: float | None = option(
        _BOUNDED,
        "10",
        "How often another server is asked how far it is. A server that is behind for three times as long is left.",
    )
    connect_timeout: float | None = option(_BOUNDED, "2", "How long a connection may take to come about.")
    attempt_timeout: float | None = option(_BOUNDED, "10", "How long a server may take to begin to send.")
    probe_timeout: float | None = option(
        _BOUNDED, "1", "How long a server is waited for when it is asked about itself."
    )
    backoff_min: float | None = option(_BOUNDED, "0.01", f"The wait after a second failure in a row. {_BACKOFF}")
    backoff_max: float | None = option(_BOUNDED, "2", "The longest wait between attempts.")
    window_bytes: int | None = option(_WINDOW, "4,194,304 (4 MiB)", "Bytes that a server may send ahead.")
