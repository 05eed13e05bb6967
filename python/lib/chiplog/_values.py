"""The state of a log: plain values that can be pickled and compared."""

from dataclasses import dataclass, field
from typing import Literal

from ._errors import Error
from ._fields import doc, documented

_ID = "32 hexadecimal digits, as in every language and command."


@documented
@dataclass(frozen=True, kw_only=True)
class Status:
    """The state of a log at the time of the call."""

    log_id: str = field(metadata=doc(f"The log's permanent name. {_ID}"))
    directory_id: str = field(metadata=doc(f"This copy's permanent name. {_ID}"))
    follows: bool = field(metadata=doc("Whether this copy is a follower's."))
    first_index: int = field(
        metadata=doc("Index of the first record that is not discarded; for an empty log, of the next one."),
    )
    last_index: int = field(metadata=doc("Index of the last committed record; for an empty log `first_index - 1`."))
    durable_index: int = field(metadata=doc("Index of the last record that is durable here."))
    bytes_used: int = field(metadata=doc("Bytes from the first record on."))
    bytes_capacity: int | None = field(metadata=doc("The configured limit of `bytes_used`; None: there is none."))
    segments: int = field(metadata=doc("The number of segment files."))
    sessions: int = field(metadata=doc("The number of open exactly-once sessions."))
    last_timestamp: int = field(
        metadata=doc("When the newest record was written, in milliseconds since 1970; 0: there is none.")
    )


@documented
@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Counters of a log since it was opened, and the work that waits in it now."""

    appends: int = field(metadata=doc("Records and batches accepted, including repeats within sessions."))
    records: int = field(metadata=doc("Records written."))
    blocks: int = field(metadata=doc("Blocks written; each holds the appends that arrived together."))
    bytes: int = field(metadata=doc("Bytes of blocks written, with headers and padding."))
    syncs: int = field(metadata=doc("Syncs that succeeded."))
    sync_seconds_total: float = field(metadata=doc("Time spent in syncs, in seconds."))
    sync_seconds_max: float = field(metadata=doc("The longest sync, in seconds."))
    sync_seconds_p50: float = field(
        metadata=doc("The median sync time, in seconds, rounded up to a power of two of a microsecond.")
    )
    sync_seconds_p99: float = field(metadata=doc("The 99th percentile of sync times, rounded in the same way."))
    rolls: int = field(metadata=doc("How often a new segment was begun."))
    scrubbed_bytes: int = field(
        metadata=doc("Bytes that the scrub has read and checked, on a replica of a cluster; else 0.")
    )
    damaged: int = field(
        metadata=doc("The number of places found where blocks are damaged; each counts once until it is repaired.")
    )
    repaired: int = field(metadata=doc("The number of those places that were repaired from other replicas."))
    truncated_records: int = field(
        metadata=doc(
            "Records truncated because another leader has others in their place. None of them was known to be "
            "committed, and their appends returned an unknown outcome."
        )
    )
    discarded_records: int = field(metadata=doc("Records removed by discards or retention."))
    syncing_seconds: float = field(
        metadata=doc("How long the current sync has been running, in seconds; 0: there is none.")
    )
    queue_appends: int = field(metadata=doc("Appends that wait to be written now."))
    queue_bytes: int = field(metadata=doc("Bytes of these appends."))
    taken_bytes: int = field(metadata=doc("Bytes of appends that the writer has taken and not yet written."))
    uncommitted_bytes: int = field(metadata=doc("Bytes that are written and not yet committed."))
    stored_objects: int = field(metadata=doc("Objects that were put into the object store."))
    stored_bytes: int = field(metadata=doc("Bytes of these objects."))
    object_failures: int = field(
        metadata=doc("Attempts to use the object store for objects of the log that failed. Each is repeated.")
    )
    fetched_bytes: int = field(
        metadata=doc("Bytes of objects that were fetched from the object store for readers.")
    )
    unstored_bytes: int = field(
        metadata=doc("Bytes of blocks here that are in no object known to be stored; 0 in a log without objects.")
    )
    cached_bytes: int = field(metadata=doc("Bytes of objects that are kept here for readers."))
    stored_index: int = field(
        metadata=doc("The last record that is in an object known to be stored; 0 if there is none.")
    )
    repaired_objects: int = field(
        metadata=doc("Objects that were missing or damaged in the object store, and that were stored again here.")
    )
    damaged_objects: int = field(
        metadata=doc("Objects that are known to be missing or damaged, and cannot be made again here.")
    )
    stored_slices: int = field(
        metadata=doc("Slices that were put into the object store: the newest entries, until an object has them.")
    )
    sliced_bytes: int = field(metadata=doc("Bytes of these slices."))
    slice_failures: int = field(
        metadata=doc("Attempts to store or to find slices that failed. Each is repeated.")
    )
    unsliced_bytes: int = field(
        metadata=doc("Bytes of blocks here that are neither in an object nor in a slice; 0 without slices.")
    )
    sliced_index: int = field(
        metadata=doc("The last record in an object or a slice: it would survive the loss of all replicas.")
    )
    stored_payloads: int = field(
        metadata=doc("Payload slices that were put into the object store, with the durability class `object`.")
    )
    payload_bytes: int = field(metadata=doc("Bytes of these slices."))
    payload_failures: int = field(
        metadata=doc("Attempts to store them that failed. Each is repeated for 10 s.")
    )
    unstored_confirmations: int = field(
        metadata=doc(
            "Appends of the durability class `object` that were confirmed here, and that the object store alone "
            "was not known to have."
        )
    )
    filled_bytes: int = field(
        metadata=doc("Bytes of the newest objects that are kept on this disk: see `Options.fill_bytes`.")
    )
    fill_failures: int = field(metadata=doc("Attempts to keep an object that failed. Each is repeated."))


@documented
@dataclass(frozen=True, kw_only=True)
class Member:
    """A replica of a cluster."""

    node: int = field(metadata=doc("Its node number."))
    directory: str | None = field(metadata=doc(f"The directory id that it must have; None: unknown. {_ID}"))
    address: str = field(metadata=doc("The address where it is reached."))
    is_voter: bool = field(metadata=doc("Whether it is a voter; else it is a learner."))
    is_leaving: bool = field(metadata=doc("Whether it is leaving the cluster, or its role as a voter."))


@documented
@dataclass(frozen=True, kw_only=True)
class RemoteInfo:
    """The state of a log, from a server."""

    log_id: str | None = field(metadata=doc(f"The log's permanent name; None: unknown. {_ID}"))
    first: int = field(
        metadata=doc("Index of the first record that is not discarded; for an empty log, of the next one."),
    )
    last: int = field(metadata=doc("Index of the last committed record; for an empty log `first - 1`."))
    bytes_used: int = field(metadata=doc("Bytes from the first record on."))
    bytes_capacity: int | None = field(metadata=doc("The configured limit of `bytes_used`; None: there is none."))
    node: int = field(metadata=doc("The replica that answered."))
    leader: int | None = field(metadata=doc("The leader; None: unknown."))
    leader_address: str | None = field(metadata=doc("Where the leader serves clients; None: unknown."))
    first_local: int | None = field(
        metadata=doc(
            "The first record in the files of that replica; those before it, from `first` on, are in the object store: "
            "a read fetches them from there. None: it did not say; in what a `Watch` returns."
        )
    )


@documented
@dataclass(frozen=True, kw_only=True)
class NamedLog:
    """The state of a named log, in this process or on servers."""

    name: str = field(metadata=doc("Its name."))
    number: int = field(metadata=doc("Its number, which no other log of the directory or of the cluster ever had."))
    log_id: str | None = field(metadata=doc(f"The log's permanent name. {_ID}"))
    group: int = field(metadata=doc("The group that holds it."))
    first_index: int = field(metadata=doc("Index of the first record that is not discarded."))
    last_index: int = field(metadata=doc("Index of the last committed record; `first_index - 1` if there is none."))
    bytes_appended: int = field(metadata=doc("Bytes of all batches that were ever appended to it."))
    last_timestamp: int = field(metadata=doc("When it was last appended to, in milliseconds since 1970; 0: never."))
    sealed: bool = field(metadata=doc("True: it takes no more appends."))
    elsewhere: bool = field(
        metadata=doc(
            "True: its group does not run on the server that answered, which then knows none of the values from "
            "`first_index` to `sealed`; `info` of a client of the log returns its indexes."
        )
    )


@documented
@dataclass(frozen=True, kw_only=True)
class Unacknowledged:
    """A record that was not acknowledged before its producer ended."""

    record: bytes = field(metadata=doc("Its bytes."))
    in_doubt: bool = field(metadata=doc("True: it was sent, and may be in the log. False: it certainly is not."))


@documented
@dataclass(frozen=True, kw_only=True)
class Closed:
    """The end of a producer."""

    left: tuple[Unacknowledged, ...] = field(
        metadata=doc("The records that were not acknowledged by then, in order.")
    )
    failed: Error | None = field(
        metadata=doc("Why records failed since the last `flush`, these or earlier ones; None: none failed.")
    )
    untold: int = field(
        metadata=doc(
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

    server: str | None = field(metadata=doc("The server that sends to it; None: it is looking for one."))
    connected_seconds: float | None = field(
        metadata=doc("How long that server has sent to it, in seconds; None: there is no server.")
    )
    first: int = field(
        metadata=doc("Index of the first record here; for an empty copy, of the first one to be received.")
    )
    last: int = field(metadata=doc("Index of the last record here; for an empty copy `first - 1`."))
    source_last: int = field(metadata=doc("Index of the last record that a server is known to have."))
    fed: bool = field(metadata=doc("Whether that server is up to date itself."))
    last_error: Error | None = field(
        metadata=doc("The last failure, which was or will be retried; None: there was none.")
    )
    stopped: Error | None = field(metadata=doc("Why it ended by itself. None: it has not."))
    connects: int = field(metadata=doc("How often a server began to send."))
    jumps: int = field(metadata=doc("How often it skipped records that all servers had discarded."))
    received_bytes: int = field(metadata=doc("Bytes received from servers."))
    received_records: int = field(metadata=doc("Records received from servers."))
    lag: int = field(metadata=doc("The number of records that a server is known to have and that are not here yet."))


@documented
@dataclass(frozen=True, kw_only=True)
class FollowerEvent:
    """An event of a follower."""

    kind: Literal["connected", "switched", "jumped", "discarded", "failed", "stopped", "missed", "other"] = field(
        metadata=doc("The kind of event; only the fields below that belong to it have a value.")
    )
    server: str | None = field(
        default=None,
        metadata=doc("Connected, switched: the server that sends now. Failed: the server, if it was one."),
    )
    server_before: str | None = field(default=None, metadata=doc("Switched: the server that sent before."))
    first: int | None = field(default=None, metadata=doc("Jumped, discarded: index of the first remaining record."))
    due: int | None = field(
        default=None, metadata=doc("Jumped: index of the record that was expected and is not available.")
    )
    error: Error | None = field(default=None, metadata=doc("Failed, stopped: the reason."))
    missed: int | None = field(default=None, metadata=doc("Missed: the number of events that were not taken in time."))
