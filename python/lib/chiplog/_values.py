"""The state of a log: plain values that can be pickled and compared."""

from dataclasses import dataclass, field
from typing import Literal

from ._errors import Error
from ._fields import documented, told

_ID = "32 hexadecimal digits, as in every language and command."


@documented
@dataclass(frozen=True, kw_only=True)
class Info:
    """The state of a log at the time of the call."""

    log_id: str = field(metadata=told(f"The log's permanent name. {_ID}"))
    directory: str = field(metadata=told(f"This copy's permanent name. {_ID}"))
    follows: bool = field(metadata=told("Whether this copy is a follower's."))
    first: int = field(
        metadata=told("Index of the first record that is not discarded; for an empty log, of the next one."),
    )
    last: int = field(metadata=told("Index of the last committed record; for an empty log `first - 1`."))
    durable: int = field(metadata=told("Index of the last record that is durable here."))
    bytes_used: int = field(metadata=told("Bytes from the first record on."))
    bytes_capacity: int | None = field(metadata=told("The configured limit of `bytes_used`; None: there is none."))
    segments: int = field(metadata=told("The number of segment files."))
    sessions: int = field(metadata=told("The number of open exactly-once sessions."))
    last_timestamp: int = field(
        metadata=told("When the newest record was written, in milliseconds since 1970; 0: there is none.")
    )


@documented
@dataclass(frozen=True, kw_only=True)
class Stats:
    """Counters of a log since it was opened."""

    appends: int = field(metadata=told("Records and batches accepted, including repeats within sessions."))
    records: int = field(metadata=told("Records written."))
    blocks: int = field(metadata=told("Blocks written; each holds the appends that arrived together."))
    bytes: int = field(metadata=told("Bytes of blocks written, with headers and padding."))
    syncs: int = field(metadata=told("Syncs that succeeded."))
    sync_seconds_total: float = field(metadata=told("Time spent in syncs, in seconds."))
    sync_seconds_max: float = field(metadata=told("The longest sync, in seconds."))
    sync_seconds_p50: float = field(
        metadata=told("The median sync time, in seconds, rounded up to a power of two of a microsecond.")
    )
    sync_seconds_p99: float = field(metadata=told("The 99th percentile of sync times, rounded in the same way."))
    rolls: int = field(metadata=told("How often a new segment was begun."))
    scrubbed_bytes: int = field(
        metadata=told("Bytes that the scrub has read and checked, on a replica of a cluster; else 0.")
    )
    damaged: int = field(
        metadata=told("The number of places found where blocks are damaged; each counts once until it is repaired.")
    )
    repaired: int = field(metadata=told("The number of those places that were repaired from other replicas."))
    truncated_records: int = field(
        metadata=told(
            "Records truncated because another leader has others in their place. None of them was known to be "
            "committed, and their appends returned an unknown outcome."
        )
    )
    discarded_records: int = field(metadata=told("Records removed by discards or retention."))
    syncing_seconds: float = field(
        metadata=told("How long the current sync has been running, in seconds; 0: there is none.")
    )


@documented
@dataclass(frozen=True, kw_only=True)
class Backlog:
    """The work that waits in a log now."""

    queue_appends: int = field(metadata=told("Appends that wait to be written."))
    queue_bytes: int = field(metadata=told("Their bytes."))
    taken_bytes: int = field(metadata=told("Bytes of appends that the writer has taken and not yet written."))
    uncommitted_bytes: int = field(metadata=told("Bytes that are written and not yet committed."))


@documented
@dataclass(frozen=True, kw_only=True)
class Member:
    """A replica of a cluster."""

    node: int = field(metadata=told("Its node number."))
    directory: str | None = field(metadata=told(f"The directory id that it must have; None: unknown. {_ID}"))
    address: str = field(metadata=told("The address where it is reached."))
    is_voter: bool = field(metadata=told("Whether it is a voter; else it is a learner."))
    is_leaving: bool = field(metadata=told("Whether it is leaving the cluster, or its role as a voter."))


@documented
@dataclass(frozen=True, kw_only=True)
class RemoteInfo:
    """The state of a log, from a server."""

    log_id: str | None = field(metadata=told(f"The log's permanent name; None: unknown. {_ID}"))
    first: int = field(
        metadata=told("Index of the first record that is not discarded; for an empty log, of the next one."),
    )
    last: int = field(metadata=told("Index of the last committed record; for an empty log `first - 1`."))
    bytes_used: int = field(metadata=told("Bytes from the first record on."))
    bytes_capacity: int | None = field(metadata=told("The configured limit of `bytes_used`; None: there is none."))
    node: int = field(metadata=told("The replica that answered."))
    leader: int | None = field(metadata=told("The leader; None: unknown."))
    leader_address: str | None = field(metadata=told("Where the leader serves clients; None: unknown."))


@documented
@dataclass(frozen=True, kw_only=True)
class Unacknowledged:
    """A record that was not acknowledged before its producer ended."""

    record: bytes = field(metadata=told("Its bytes."))
    in_doubt: bool = field(metadata=told("True: it was sent, and may be in the log. False: it certainly is not."))


@documented
@dataclass(frozen=True, kw_only=True)
class Closed:
    """The end of a producer."""

    left: tuple[Unacknowledged, ...] = field(
        metadata=told("The records that were not acknowledged by then, in order.")
    )
    failed: Error | None = field(
        metadata=told("Why records failed since the last `flush`, these or earlier ones; None: none failed.")
    )
    untold: int = field(
        metadata=told(
            "The number of records that failed earlier, are not in `left`, and whose failure no ticket or flush "
            "has reported.",
        )
    )

    @property
    def all_acknowledged(self) -> bool:
        """Whether every record is in the log, except for those whose failure a flush has reported."""
        return not self.left and self.failed is None


@documented
@dataclass(frozen=True, kw_only=True)
class FollowerStatus:
    """The state of a follower."""

    server: str | None = field(metadata=told("The server that sends to it; None: it is looking for one."))
    connected_seconds: float | None = field(
        metadata=told("How long that server has sent to it, in seconds; None: there is no server.")
    )
    first: int = field(
        metadata=told("Index of the first record here; for an empty copy, of the first one to be received.")
    )
    last: int = field(metadata=told("Index of the last record here; for an empty copy `first - 1`."))
    source_last: int = field(metadata=told("Index of the last record that a server is known to have."))
    fed: bool = field(metadata=told("Whether that server is up to date itself."))
    last_error: Error | None = field(
        metadata=told("The last failure, which was or will be retried; None: there was none.")
    )
    stopped: Error | None = field(metadata=told("Why it ended by itself. None: it has not."))
    connects: int = field(metadata=told("How often a server began to send."))
    jumps: int = field(metadata=told("How often it skipped records that all servers had discarded."))
    received_bytes: int = field(metadata=told("Bytes received from servers."))
    received_records: int = field(metadata=told("Records received from servers."))
    lag: int = field(metadata=told("The number of records that a server is known to have and that are not here yet."))


@documented
@dataclass(frozen=True, kw_only=True)
class FollowerEvent:
    """An event of a follower."""

    kind: Literal["connected", "switched", "jumped", "discarded", "failed", "stopped", "missed", "other"] = field(
        metadata=told("The kind of event; only the fields below that belong to it have a value.")
    )
    server: str | None = field(
        default=None,
        metadata=told("Connected, switched: the server that sends now. Failed: the server, if it was one."),
    )
    server_before: str | None = field(default=None, metadata=told("Switched: the server that sent before."))
    first: int | None = field(default=None, metadata=told("Jumped, discarded: index of the first remaining record."))
    due: int | None = field(
        default=None, metadata=told("Jumped: index of the record that was expected and is not available.")
    )
    error: Error | None = field(default=None, metadata=told("Failed, stopped: the reason."))
    missed: int | None = field(default=None, metadata=told("Missed: the number of events that were not taken in time."))
