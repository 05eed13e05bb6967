"""Options and starts: plain values, to be pickled and compared. A field that is None leaves the log's default, which
is given here as of this version. Times are in seconds, sizes in bytes."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal


@dataclass(frozen=True)
class Start:
    """Where a reader begins. A plain index stands for `Start.index(n)`."""

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
        """This record, which may be the next one to come."""
        return cls("index", index)

    @classmethod
    def last(cls, count: int) -> "Start":
        """So many records before the end; fewer if there are not so many."""
        return cls("last", count)

    @classmethod
    def since(cls, time: datetime | int) -> "Start":
        """The first record written at this time or later; a number is milliseconds since 1970."""
        return cls("since", time if isinstance(time, int) else int(time.timestamp() * 1000))


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a log is opened."""

    create: bool | None = None
    """Make a new log when the directory holds none. True."""
    segment_bytes: int | None = None
    """Size of a segment file: 64 KiB to 1 GiB. 64 MiB. Limits that depend on it come down with it."""
    capacity_bytes: int | None = None
    """The most bytes of retained records; beyond it appends fail as `FullError`. None: until the disk is full."""
    record_bytes_max: int | None = None
    """The largest record. 16 MiB."""
    batch_bytes_max: int | None = None
    """The largest batch. 32 MiB."""
    block_bytes_max: int | None = None
    """How much one write gathers. 4 MiB."""
    queue_bytes_max: int | None = None
    """Bytes that may wait to be written; beyond it appends wait. 64 MiB."""
    queue_appends_max: int | None = None
    """Appends that may wait to be written. 65,536."""
    queue_timeout: float | None = None
    """How long a session waits for room in the queue. 60."""
    read_mode: Literal["map", "read"] | None = None
    """Readers get slices of mappings ("map"), or copies by `pread` ("read"). "map"."""
    prefetch_bytes: int | None = None
    """How far a reader reads ahead; 0 leaves it to the kernel. 8 MiB."""
    retention_bytes: int | None = None
    """Keep at most about this many bytes. None: all."""
    retention_age: float | None = None
    """Discard segments whose newest record is older. None: keep all."""
    sessions_max: int | None = None
    """The most exactly-once sessions open at a time. 4,096."""
    session_window: int | None = None
    """How many of a session's latest appends the log remembers the indexes of. 128."""
    session_idle_max: float | None = None
    """A session that sends nothing for so long expires. A day."""


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Whom a client trusts, and how it proves itself, all in PEM."""

    authority: bytes
    """Who has to have signed the servers' certificates."""
    certificate: bytes | None = None
    """This client's certificate, where servers want one."""
    key: bytes | None = None
    """Its private key."""

    def __repr__(self) -> str:
        return "Tls(...)"


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Deadlines and limits of a client."""

    log: str | None = None
    """Which log. The servers' only one."""
    timeout: float | None = None
    """How long a call may take with all its attempts. 30."""
    attempt_timeout: float | None = None
    """How long one attempt may take. 10."""
    connect_timeout: float | None = None
    """How long a connection may take to come about. 2."""
    probe_timeout: float | None = None
    """How long a server is waited for when all are asked who leads. 1."""
    backoff_min: float | None = None
    """The wait after a first failure; twice as long after each further one. 0.01."""
    backoff_max: float | None = None
    """The longest such wait. 1."""
    keep_alive: float | None = None
    """After so long without a sign of the other side a connection is tested. 5."""
    window_bytes: int | None = None
    """Bytes that a server may send ahead. 4 MiB."""
    tls: Tls | None = None
    """TLS. None: plain."""
    token: str | None = field(default=None, repr=False)
    """The token that is shown with every call, where servers want one."""
    token_in_plain_text: bool | None = None
    """Whether the token may go to other machines without TLS. False."""


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """Limits, deadlines and promises of a producer."""

    linger: float | None = None
    """How long a batch that is not full waits for more records. 0."""
    batch_bytes: int | None = None
    """A batch goes when it is so large. 256 KiB."""
    batch_records: int | None = None
    """A batch goes when it has so many records. 1,048,576."""
    codec: Literal["none", "lz4", "zstd"] | None = None
    """How batches are compressed. "none"."""
    buffer_bytes: int | None = None
    """Bytes of records that are not acknowledged yet; beyond it callers wait. 32 MiB."""
    block_max: float | None = None
    """How long a caller waits for room before `BusyError`. 60."""
    inflight_max: int | None = None
    """Batches under way at a time. 32."""
    exactly_once: bool | None = None
    """Each record is in the log once, whatever is sent again, in order. True."""
    session: tuple[int, int] | None = None
    """Goes on in this session, whose next batch has this number: for programs that send again after a restart what they
    have kept. See `Client.open_session`. None: opens one."""
    request_timeout: float | None = None
    """Without an answer for so long, the connection is given up. 10."""
    delivery_timeout: float | None = None
    """A record that is not acknowledged for so long fails. 120."""
    full_max: float | None = None
    """How long the log may be full before records fail as `FullError`. 5."""


@dataclass(frozen=True, kw_only=True)
class ReaderOptions:
    """Where and how a reader over the network reads."""

    leader: bool | None = None
    """Reads at the leader: what was acknowledged is there at once. False: at any replica."""
    zone: str | None = None
    """Reads at a replica of this zone, if one answers. None: at any."""
    min_index: int | None = None
    """A replica that is not so far yet is waited for. 0."""
    keep_alive: float | None = None
    """How often an idle server says that it is there. 3."""
    timeout: float | None = None
    """How long servers are tried before an error is raised. 30."""


@dataclass(frozen=True, kw_only=True)
class FollowerOptions:
    """Deadlines and limits of a follower, and those of its files."""

    files: Options | None = None
    """Those of the copy's own files, as how large they are and what is kept."""
    log: str | None = None
    """Which log. The servers' only one."""
    zone: str | None = None
    """A server of this zone is preferred. None."""
    tls: Tls | None = None
    """TLS. None: plain."""
    token: str | None = field(default=None, repr=False)
    """The token that is shown to servers, where they want one."""
    token_in_plain_text: bool | None = None
    """Whether the token may go to other machines without TLS. False."""
    open_timeout: float | None = None
    """How long opening an empty directory waits for a server. 30."""
    keep_alive: float | None = None
    """How often an idle server says that it is there. 3."""
    compare_interval: float | None = None
    """How often another server is asked how far it is. 10."""
    connect_timeout: float | None = None
    """How long a connection may take to come about. 2."""
    attempt_timeout: float | None = None
    """How long a server may take to begin to send. 10."""
    probe_timeout: float | None = None
    """How long a server is waited for when it is asked about itself. 1."""
    backoff_min: float | None = None
    """The wait after a second failure in a row; twice as long after each further one. 0.01."""
    backoff_max: float | None = None
    """The longest such wait. 2."""
    window_bytes: int | None = None
    """Bytes that a server may send ahead. 4 MiB."""
