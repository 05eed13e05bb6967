"""What the log tells of itself: plain values, to be pickled and compared."""

from dataclasses import dataclass
from typing import Literal

from ._errors import Error


@dataclass(frozen=True, kw_only=True)
class Info:
    """How a log stands."""

    log_id: int
    """The log's name for ever."""
    directory: int
    """This copy of it."""
    follows: bool
    """Whether this copy follows the log from outside."""
    first: int
    """The first record that is not discarded; of an empty log, the first one to come."""
    last: int
    """The last committed record; of an empty log `first - 1`."""
    durable: int
    """The last record durable here."""
    bytes_used: int
    """Bytes from the first record on."""
    bytes_capacity: int | None
    """The configured limit of `bytes_used`."""
    segments: int
    """Files that hold them."""
    sessions: int
    """Exactly-once sessions that are open."""
    last_timestamp: int
    """When the newest record was written, in milliseconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Stats:
    """What a log did since it was opened."""

    appends: int
    records: int
    blocks: int
    bytes: int
    syncs: int
    sync_seconds_total: float
    sync_seconds_max: float
    sync_seconds_p50: float
    """Half of all syncs took less, to the next power of two of a microsecond."""
    sync_seconds_p99: float
    rolls: int
    """Files begun."""
    scrubbed_bytes: int
    """Bytes that the scrub has read and checked: of a replica of a cluster; else 0."""
    damaged: int
    """Places found where blocks are damaged."""
    repaired: int
    """Such places that were repaired with what other replicas have."""
    syncing_seconds: float
    """How long the sync has run that is running now; none: 0."""


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """What waits in a log."""

    queue_appends: int
    queue_bytes: int
    taken_bytes: int
    uncommitted_bytes: int


@dataclass(frozen=True, kw_only=True)
class Member:
    """A replica that belongs to a cluster."""

    node: int
    """Its number."""
    directory: int
    """The directory it has to come with; 0: not known."""
    address: str
    """Where it is reached."""
    is_voter: bool
    is_leaving: bool
    """It is about to leave, or to vote no more."""


@dataclass(frozen=True, kw_only=True)
class RemoteInfo:
    """How a log stands, as a server tells."""

    log_id: int
    """The log's name for ever; 0: not told."""
    first: int
    last: int
    bytes_used: int
    bytes_capacity: int | None
    node: int
    """The replica that tells."""
    leader: int | None
    """Who leads, if that is known."""
    leader_address: str | None
    """Where it serves clients, if that is known."""


@dataclass(frozen=True, kw_only=True)
class Unacknowledged:
    """A record that a producer was given and that was not acknowledged before it ended."""

    record: bytes
    in_doubt: bool
    """It was sent, and can be in the log. False: it surely is not."""


@dataclass(frozen=True, kw_only=True)
class Closed:
    """How a producer ended."""

    left: tuple[Unacknowledged, ...]
    """The records that were not acknowledged by then, in their order."""
    failed: Error | None
    """Why records failed, these or earlier ones, since the last `flush`."""

    @property
    def all_acknowledged(self) -> bool:
        """Whether every record is in the log, but for those whose failure a flush has told."""
        return not self.left and self.failed is None


@dataclass(frozen=True, kw_only=True)
class FollowerStatus:
    """How a follower stands."""

    server: str | None
    """The server that feeds it; None: it looks for one."""
    connected_seconds: float | None
    """For how long that server has."""
    first: int
    last: int
    source_last: int
    """The last record that a server was known to have."""
    fed: bool
    """Whether that server is kept up to date itself."""
    last_error: Error | None
    """What went wrong last, and was or will be tried again."""
    stopped: Error | None
    """Why it has ended by itself. None: it has not."""
    connects: int
    jumps: int
    """Times that it jumped over what all servers had discarded."""
    received_bytes: int
    received_records: int
    lag: int
    """Records that the server is known to have and that are not here yet."""


@dataclass(frozen=True, kw_only=True)
class FollowerEvent:
    """Something that happened to a follower."""

    kind: Literal["connected", "switched", "jumped", "discarded", "failed", "stopped", "missed", "other"]
    server: str | None = None
    """Connected, switched: who sends now. Failed: who it was, if it was a server."""
    server_before: str | None = None
    """Switched: who sent before."""
    first: int | None = None
    """Jumped, discarded: the first record that is left."""
    due: int | None = None
    """Jumped: the record that was due, and is not to be had."""
    error: Error | None = None
    """Failed, stopped: why."""
    missed: int | None = None
    """Missed: so many events were not taken in time."""
