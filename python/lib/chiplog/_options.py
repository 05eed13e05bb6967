"""Options and starts: plain values that can be pickled and compared. A field that is None stands for the default; the
defaults named here are those of this version. Times are in seconds, sizes in bytes."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from ._fields import documented, needed, option


@dataclass(frozen=True)
class Start:
    """Where a reader begins. Made by `first`, `next`, `index`, `last` and `since`; a plain index stands for
    `Start.index(n)`. Its value is checked only when a reader begins there."""

    kind: Literal["first", "next", "index", "last", "since"]
    value: int = 0

    @classmethod
    def first(cls) -> "Start":
        """The first record that is not discarded."""
        return cls("first")

    @classmethod
    def next(cls) -> "Start":
        """The next record to be appended."""
        return cls("next")

    @classmethod
    def index(cls, index: int) -> "Start":
        """The record at `index`, from 1, which may be the next one to be appended.

        Beyond that the reader raises `OutOfRangeError`, below the first record `DiscardedError`."""
        return cls("index", index)

    @classmethod
    def last(cls, count: int) -> "Start":
        """`count` records before the end, from 0; at the first record if there are fewer."""
        return cls("last", count)

    @classmethod
    def since(cls, time: datetime | int) -> "Start":
        """The first record that the log accepted at `time` or later: a datetime, or milliseconds since 1970.

        A datetime without a zone is in local time. If all records are older, it is the next one to be appended."""
        if isinstance(time, datetime):
            time = int(time.timestamp() * 1000)
        return cls("since", time)


_TIME = "finite seconds, from 0"
_SOME_TIME = "finite seconds, from 0.001"
_BACKOFF = "It doubles after each further failure, up to backoff_max."
_WINDOW = "bytes, from 65,536 to 2,147,483,647"
_TOKEN = "text, printable ASCII"


@documented
@dataclass(frozen=True, kw_only=True)
class Options:
    """Options for opening a log. A field that is None has its default; `Log.options` has the values in force.

    Opening the log raises `InvalidArgumentError` for a value out of its bounds, `TypeError` for another type."""

    create: bool | None = option("True or False", "True", "Creates a log if the directory holds none.")
    segment_bytes: int | None = option(
        "bytes, 65,536 (64 KiB) to 1,073,741,824 (1 GiB)",
        "67,108,864 (64 MiB)",
        "Size of a segment file; a log takes at least three of them on disk. Defaults that depend on it (those of the "
        "largest record, batch and block, and of sessions) are lowered with it.",
    )
    capacity_bytes: int | None = option(
        "bytes, at least two segments",
        "None: until the disk is full",
        "Limit of the bytes of retained records; beyond it appends raise FullError.",
    )
    record_bytes_max: int | None = option(
        "bytes, 1 to what fits in batch_bytes_max", "16,777,216 (16 MiB)", "The largest record."
    )
    batch_bytes_max: int | None = option(
        "bytes, 1,024 to what fits in a segment, up to 256 MiB", "33,554,432 (32 MiB)", "The largest batch."
    )
    block_bytes_max: int | None = option(
        "bytes, 4,096 to what fits in a segment",
        "4,194,304 (4 MiB)",
        "The largest amount that one write collects. A single larger batch is written by itself.",
    )
    queue_bytes_max: int | None = option(
        "bytes, batch_bytes_max to 2^40",
        "67,108,864 (64 MiB)",
        "Bytes that may wait to be written; beyond it appends wait.",
    )
    queue_appends_max: int | None = option(
        "a number of appends, 1 to 16,777,216", "65,536", "Appends that may wait to be written; beyond it appends wait."
    )
    queue_timeout: float | None = option(
        _TIME, "60", "How long an append waits for space in the queue before it raises BusyError."
    )
    read_mode: Literal["map", "read"] | None = option(
        '"map" or "read"',
        '"map"',
        'How readers access the bytes: "map": slices of mapped files; "read": copies by `pread`.',
    )
    prefetch_bytes: int | None = option(
        "bytes, 0 to 1,073,741,824", "8,388,608 (8 MiB)", "How far a reader reads ahead; 0 leaves it to the kernel."
    )
    retention_bytes: int | None = option(
        "bytes, at least two segments",
        "None: keep all",
        "Keep about this many bytes: whole segments are discarded from the front.",
    )
    retention_age: float | None = option(
        _SOME_TIME, "None: keep all", "Discard segments whose newest record is older than this."
    )
    sessions_max: int | None = option(
        "a number of sessions, 1 to 1,048,576, that fit in an eighth of a segment",
        "4,096",
        "The largest number of open exactly-once sessions.",
    )
    session_window: int | None = option(
        "a number of appends, 1 to 1,024",
        "128",
        "The number of a session's latest appends whose indexes the log remembers.",
    )
    session_idle_max: float | None = option(
        _SOME_TIME, "86,400 (a day)", "A session that sends nothing for this long expires."
    )
    object_store: str | None = option(
        'text, a location: "s3://BUCKET/PREFIX", "gs://BUCKET/PREFIX", "az://CONTAINER/PREFIX", "file:///DIRECTORY" or an '
        "absolute path",
        "None: no object store",
        "Where the log keeps copies of its older records. Keys, region and endpoint come from the variables that the "
        "store's own programs use, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL. Opening the log makes no request, and "
        "a store that is down stops no append. A follower reads the log's older records from there. "
        "`Log.options` does not tell it.",
    )
    object_bytes: int | None = option(
        "bytes, 65,536 (64 KiB) to 536,870,912 (512 MiB)", "67,108,864 (64 MiB)", "The largest object, in bytes of blocks."
    )
    object_age: float | None = option(
        _SOME_TIME,
        "None: only full objects",
        "Records that are older than this are stored, even if they make a small object.",
    )
    local_bytes: int | None = option(
        "bytes, at least two segments",
        "None: keep all",
        "Keep about this many bytes of records on this disk that are in the object store; older ones are read from there.",
    )
    local_age: float | None = option(
        _SOME_TIME, "None: keep all", "Keep records that are in the object store on this disk no longer than this."
    )
    cache_bytes: int | None = option(
        "bytes, at least 8,388,608 (8 MiB)",
        "1,073,741,824 (1 GiB)",
        "Bytes of objects that are kept on this disk after they were read.",
    )
    fill_bytes: int | None = option(
        "bytes, at least 65,536 (64 KiB)",
        "None: none",
        "Download whole objects at leisure, and keep this many bytes of the newest ones on this disk: readers of these records need "
        "no object store. Files and these objects together stay within `local_bytes` and `capacity_bytes`.",
    )
    object_delete_delay: float | None = option(
        _TIME, "86,400 (a day)", "How long objects are kept after their records were discarded."
    )
    object_scrub: float | None = option(
        "seconds, at least 0.1; 0: none",
        "2,592,000 (30 days)",
        "How long a pass over all stored objects takes, in which each is read and compared with what the log says of it. A "
        "missing or damaged one is stored again, by a replica that has its entries in files. 0: objects are not examined.",
    )
    slice_interval: float | None = option(
        "seconds, 0.01 to 60; None: no slices",
        "None",
        "How often the newest committed entries, which no object has yet, go to the object store as a slice. Needs `object_store`. "
        "Of named logs each group stores slices of its own, and so does the catalogue.",
    )
    slice_bytes: int | None = option(
        "bytes, 524,288 to 8,388,608 (8 MiB)",
        "4,194,304 (4 MiB)",
        "How many bytes of blocks a slice has at most. As many are stored at once, before the interval is over.",
    )
    payload_slices: bool | None = option(
        "True or False",
        "False",
        "Whether appends go to the object store, and only references to them are replicated: the durability class `object`. Needs "
        "`object_store` and `slice_interval`. Of named logs each group has payload slices of its own.",
    )
    sorted_copies: bool | None = option(
        "True or False",
        "True",
        "For named logs: copies full segments of a group in the order of their logs, so that one of many logs is read at the speed of "
        "a log on its own. A copy takes about the space of its segment, and gives way where the disk is full.",
    )


@documented
@dataclass(frozen=True, kw_only=True)
class Tls:
    """The authority that a client trusts, and its own certificate and key, all in PEM. `repr` shows none of it."""

    authority: bytes = field(metadata=needed("bytes, PEM", "The authority that signed the servers' certificates."))
    certificate: bytes | None = option(
        "bytes, PEM, together with key", "None", "This client's certificate, if the servers require one."
    )
    key: bytes | None = option("bytes, PEM, together with certificate", "None", "The private key of the certificate.")

    def __repr__(self) -> str:
        return "Tls(...)"


@documented
@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Deadlines and limits of a client. A field that is None has its default.

    Connecting raises `InvalidArgumentError` for a value out of its bounds, `TypeError` for another type."""

    log: str | None = option("text", "the servers' only one", "The name of the log.")
    timeout: float | None = option(_TIME, "30", "Time limit of a call with all its attempts.")
    attempt_timeout: float | None = option(_TIME, "10", "Time limit of one attempt.")
    connect_timeout: float | None = option(_TIME, "2", "Time limit for opening a connection.")
    probe_timeout: float | None = option(
        _TIME,
        "1",
        "Time limit for one server's answer when the client asks all of them for the leader.",
    )
    backoff_min: float | None = option(_TIME, "0.01", f"The wait after the first failure. {_BACKOFF}")
    backoff_max: float | None = option(_TIME, "1", "The longest wait between attempts.")
    keep_alive: float | None = option(
        _TIME,
        "5",
        "A connection is tested after this long without data from the other side, and closed after the same "
        "time again.",
    )
    window_bytes: int | None = option(_WINDOW, "4,194,304 (4 MiB)", "Bytes that a server may send ahead on a stream.")
    tls: Tls | None = option(
        "a chiplog.Tls",
        "None: without TLS",
        "The authority that the client trusts, and its own certificate.",
    )
    token: str | None = option(
        _TOKEN, "None", "The token that is sent with every call, if the servers require one.", repr=False
    )
    token_in_plain_text: bool | None = option(
        "True or False",
        "False",
        "Whether the token may be sent to other machines without TLS. If not, such servers are not used.",
    )


@documented
@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """Limits, deadlines and guarantees of a producer. A field that is None has its default.

    Opening the producer raises `InvalidArgumentError` for a value out of its bounds, `TypeError` for another type."""

    linger: float | None = option(
        "finite seconds, from 0, less than delivery_timeout",
        "0",
        "How long a batch that is not full waits for more records.",
    )
    batch_bytes: int | None = option(
        "bytes, 45 to 268,435,456 (256 MiB)",
        "262,144 (256 KiB)",
        "A batch of this size is sent; a larger record is sent alone.",
    )
    batch_records: int | None = option(
        "a number of records, 1 to 1,048,576", "1,048,576", "A batch with this number of records is sent."
    )
    codec: Literal["none", "lz4", "zstd"] | None = option(
        '"none", "lz4" or "zstd"', '"none"', "The compression of batches."
    )
    buffer_bytes: int | None = option(
        "bytes, from 0", "33,554,432 (32 MiB)", "Limit of the bytes of unacknowledged records; beyond it callers wait."
    )
    block_max: float | None = option(_TIME, "60", "How long a caller waits for space before BusyError.")
    inflight_max: int | None = option(
        "a number of batches, 1 to 1,024",
        "32",
        "Limit of the batches in flight; with exactly_once not above the log's session_window.",
    )
    exactly_once: bool | None = option(
        "True or False",
        "True",
        "Each record is in the log once, in the order of sending, even after retries. False: records that are sent "
        "again after a failure can be there twice, and out of order.",
    )
    session: tuple[int, int] | None = option(
        "a pair of integers: the session's id, and the number of its next batch, from 1; with exactly_once",
        "None: opens one",
        "Continues in this session: for programs that keep their records, and send them again after a restart. Send "
        "batches with submit_batch: each takes one number, and a batch repeated under its number is in "
        "the log once. See Client.open_session.",
    )
    request_timeout: float | None = option(
        "finite seconds, more than 0",
        "10",
        "After this long without an answer the connection is closed, and batches are sent again.",
    )
    delivery_timeout: float | None = option(
        "finite seconds, more than 0",
        "120",
        "A record that is not acknowledged within this time fails. If servers refused it, with FullError, BusyError or "
        "TooManySessionsError: it is certainly not in the log. Otherwise with TimeoutError: it may be in the log.",
    )
    full_max: float | None = option(
        _TIME,
        "5",
        "Once the log has been full for this long, records that have waited this long fail with FullError.",
    )
    exit_timeout: float | None = option(
        _TIME,
        "5",
        "How long a producer that was not closed continues to send when the program ends. The number of records not "
        "acknowledged by then is reported on stderr and as a ResourceWarning.",
    )


@documented
@dataclass(frozen=True, kw_only=True)
class ReaderOptions:
    """Where and how a reader over the network reads. A field that is None has its default.

    Opening the reader raises `InvalidArgumentError` for a value out of its bounds, `TypeError` for another type."""

    leader: bool | None = option(
        "True or False, not with zone",
        "False: at any replica",
        "Reads from the leader: acknowledged records are visible at once.",
    )
    zone: str | None = option(
        "text, not with leader",
        "None: at any replica",
        "Reads from a replica of this zone if one answers, else from any.",
    )
    min_index: int | None = option(
        "an index, from 0",
        "0",
        "The reader waits for a replica that does not have this record yet. Use it to read a record just written.",
    )
    keep_alive: float | None = option(
        "finite seconds, from 0.01",
        "3",
        "The interval at which an idle server sends a sign of life. A server silent for three times as long is left.",
    )
    timeout: float | None = option(_TIME, "30", "How long servers are tried before an error is raised.")


_BOUNDED = "seconds, 0.001 to 86,400"


@documented
@dataclass(frozen=True, kw_only=True)
class FollowerOptions:
    """Deadlines and limits of a follower, and those of its files. A field that is None has its default.

    Opening the follower raises `InvalidArgumentError` for a value out of its bounds, `TypeError` for another type."""

    files: Options | None = option(
        "a chiplog.Options", "Options()", "Options of the copy's own files, such as their size and retention."
    )
    log: str | None = option(
        "text", 'the log "default"', "The name of the log. A named log: the copy has this log alone."
    )
    served_objects: bool | None = option(
        "True or False",
        "False",
        "Whether the copy reads objects through the servers that it is given, as with an `object_store` in `files`: for a "
        "program that cannot reach the store, or has no credentials. The servers need an object store; `files` must have none. For a named "
        "log the token must reach its whole group.",
    )
    zone: str | None = option("text", "None: no zone", "The zone whose servers are preferred.")
    tls: Tls | None = option(
        "a chiplog.Tls",
        "None: without TLS",
        "The authority that the follower trusts, and its own certificate.",
    )
    token: str | None = option(_TOKEN, "None", "The token that is sent to servers, if they require one.", repr=False)
    token_in_plain_text: bool | None = option(
        "True or False",
        "False",
        "Whether the token may be sent to other machines without TLS. If not, such servers are not used.",
    )
    open_timeout: float | None = option(
        _TIME, "30", "How long opening an empty directory waits for a server. A directory with a copy needs no server."
    )
    keep_alive: float | None = option(
        _BOUNDED,
        "3",
        "The interval at which an idle server sends a sign of life. A server silent for three times as long is left.",
    )
    compare_interval: float | None = option(
        _BOUNDED,
        "10",
        "The interval at which the follower asks another server for its position. A server that is behind "
        "for three times "
        "as long is left.",
    )
    connect_timeout: float | None = option(_BOUNDED, "2", "Time limit for opening a connection.")
    attempt_timeout: float | None = option(_BOUNDED, "10", "Time limit for a server to begin to send.")
    probe_timeout: float | None = option(
        _BOUNDED, "1", "Time limit for a server's answer about itself."
    )
    backoff_min: float | None = option(_BOUNDED, "0.01", f"The wait after the second failure in a row. {_BACKOFF}")
    backoff_max: float | None = option(_BOUNDED, "2", "The longest wait between attempts.")
    window_bytes: int | None = option(_WINDOW, "4,194,304 (4 MiB)", "Bytes that a server may send ahead.")
