"""What the log tells of itself: plain values, to be pickled and compared."""

from dataclasses import dataclass, field
from typing import Literal

from ._errors import Error
from ._fields import documented, told

_ID = "32 hexadecimal digits, as in every language and command."


@documented
@dataclass(frozen=True, kw_only=True)
class Info:
    """How a log stands, at the moment it was asked."""

    log_id: str = field(metadata=told(f"The log's name for ever. {_ID}"))
    directory: str = field(metadata=told(f"This copy of it. {_ID}"))
    follows: bool = field(metadata=told("Whether this copy follows the log from outside."))
    first: int = field(
        metadata=told("Index of the first record that is not discarded; of an empty log, of the first one to come.")
    )
    last: int = field(metadata=told("Index of the last committed record; of an empty log `first - 1`."))
    durable: int = field(metadata=told("Index of the last record durable here."))
    bytes_used: int = field(metadata=told("Bytes from the first record on."))
    bytes_capacity: int | None = field(metadata=told("The configured limit of `bytes_used`; None: there is none."))
    segments: int = field(metadata=told("Files that hold them."))
    sessions: int = field(metadata=told("Exactly-once sessions that are open."))
    last_timestamp: int = field(metadata=told("When the newest record was written, in milliseconds since 1970; 0: none was."))


@documented
@dataclass(frozen=True, kw_only=True)
class Stats:
    """What a log did since it was opened."""

    appends: int = field(metadata=told("Records and batches that were taken, those that a session repeated included."))
    records: int = field(metadata=told("Records that were written."))
    blocks: int = field(metadata=told("Blocks that were written; each gathers the appends of a moment."))
    bytes: int = field(metadata=told("Bytes of blocks that were written, headers and padding included."))
    syncs: int = field(metadata=told("Syncs that succeeded."))
    sync_seconds_total: float = field(metadata=told("Time spent in them, in seconds."))
    sync_seconds_max: float = field(metadata=told("The longest of them, in seconds."))
    sync_seconds_p50: float = field(
        metadata=told("Half of all syncs took less, in seconds, to the next power of two of a microsecond.")
    )
    sync_seconds_p99: float = field(metadata=told("99 of 100 syncs took less, in the same way."))
    rolls: int = field(metadata=told("Files begun."))
    scrubbed_bytes: int = field(
        metadata=told("Bytes that the scrub has read and checked: of a replica of a cluster; else 0.")
    )
    damaged: int = field(metadata=told("Places found where blocks are damaged; each counts once, until it is repaired."))
    repaired: int = field(metadata=told("Such places that were repaired with what other replicas have."))
    truncated_records: int = field(
        metadata=told(
            "Records cut off because another leader has others in their place; none was known to be committed, and their "
            "callers were told that the outcome is unknown."
        )
    )
    discarded_records: int = field(metadata=told("Records that a discard or retention has taken from the log."))
    syncing_seconds: float = field(metadata=told("How long the sync has run that is running now, in seconds; none: 0."))


@documented
@dataclass(frozen=True, kw_only=True)
class Backlog:
    """What waits in a log."""

    queue_appends: int = field(metadata=told("Appends that wait to be written."))
    queue_bytes: int = field(metadata=told("Their bytes."))
    taken_bytes: int = field(metadata=told("Bytes of appends that the writer has taken and that are not written yet."))
    uncommitted_bytes: int = field(metadata=told("Bytes that are written and not committed yet."))


@documented
@dataclass(frozen=True, kw_only=True)
class Member:
    """A replica that belongs to a cluster."""

    node: int = field(metadata=told("Its number."))
    directory: str | None = field(metadata=told(f"The directory it has to come with; None: not known. {_ID}"))
    address: str = field(metadata=told("Where it is reached."))
    is_voter: bool = field(metadata=told("Whether it votes; else it is learning."))
    is_leaving: bool = field(metadata=told("It is about to leave, or to vote no more."))


@documented
@dataclass(frozen=True, kw_only=True)
class RemoteInfo:
    """How a log stands, as a server tells."""

    log_id: str | None = field(metadata=told(f"The log's name for ever; None: not told. {_ID}"))
    first: int = field(
        metadata=told("Index of the first record that is not discarded; of an empty log, of the first one to come.")
    )
    last: int = field(metadata=told("Index of the last committed record; of an empty log `first - 1`."))
    bytes_used: int = field(metadata=told("Bytes from the first record on."))
    bytes_capacity: int | None = field(metadata=told("The configured limit of `bytes_used`; None: there is none."))
    node: int = field(metadata=told("The replica that tells."))
    leader: int | None = field(metadata=told("Who leads; None: not known."))
    leader_address: str | None = field(metadata=told("Where it serves clients; None: not known."))


@documented
@dataclass(frozen=True, kw_only=True)
class Unacknowledged:
    """A record that a producer was given and that was not acknowledged before it ended."""

    record: bytes = field(metadata=told("Its bytes."))
    in_doubt: bool = field(metadata=told("It was sent, and can be in the log. False: it surely is not."))


@documented
@dataclass(frozen=True, kw_only=True)
class Closed:
    """How a producer ended."""

    left: tuple[Unacknowledged, ...] = field(
        metadata=told("The records that were not acknowledged by then, in their order.")
    )
    failed: Error | None = field(metadata=told("Why records failed, these or earlier ones, since the last `flush`."))
    untold: int = field(
        metadata=told(
            "How many records failed earlier, are not in `left`, and nobody was told of: by a ticket, or by a flush since."
        )
    )

    @property
    def all_acknowledged(self) -> bool:
        """Whether every record is in the log, except for those whose failure a flush has told."""
        return not self.left and self.failed is None


@documented
@dataclass(frozen=True, kw_only=True)
class FollowerStatus:
    """How a follower stands."""

    server: str | None = field(metadata=told("The server that feeds it; None: it looks for one."))
    connected_seconds: float | None = field(metadata=told("For how long that server has, in seconds."))
    first: int = field(metadata=told("Index of the first record that is here; of an empty copy, of the first one to come."))
    last: int = field(metadata=told("Index of the last record that is here; of an empty copy `first - 1`."))
    source_last: int = field(metadata=told("Index of the last record that a server was known to have."))
    fed: bool = field(metadata=told("Whether that server is kept up to date itself."))
    last_error: Error | None = field(metadata=told("What went wrong last, and was or will be tried again."))
    stopped: Error | None = field(metadata=told("Why it has ended by itself. None: it has not."))
    connects: int = field(metadata=told("Times that it began with a server."))
    jumps: int = field(metadata=told("Times that it jumped over what all servers had discarded."))
    received_bytes: int = field(metadata=told("Bytes that servers have sent."))
    received_records: int = field(metadata=told("Records that servers have sent."))
    lag: int = field(metadata=told("Records that the server is known to have and that are not here yet."))


@documented
@dataclass(frozen=True, kw_only=True)
class FollowerEvent:
    """Something that happened to a follower."""

    kind: Literal["connected", "switched", "jumped", "discarded", "failed", "stopped", "missed", "other"] = field(
        metadata=told("What happened; of the fields below those have a value that belong to it.")
    )
    server: str | None = field(
        default=None, metadata=told("Connected, switched: who sends now. Failed: who it was, if it was a server.")
    )
    server_before: str | None = field(default=None, metadata=told("Switched: who sent before."))
    first: int | None = field(default=None, metadata=told("Jumped, discarded: index of the first record that is left."))
    due: int | None = field(default=None, metadata=told("Jumped: index of the record that was due, and is not to be had."))
    error: Error | None = field(default=None, metadata=told("Failed, stopped: why."))
    missed: int | None = field(default=None, metadata=told("Missed: so many events were not taken in time."))
