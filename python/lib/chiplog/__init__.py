"""A durable, replicated log: embedded (`Log`), over the network (`Client`), or as a copy that follows (`Follower`).

    import chiplog

    with chiplog.Log("orders") as log:
        index = log.append(b"3 lenses to Cambridge")  # returns once it is on stable storage
        for record in log.read(index):
            print(record.index, record.decode())

chiplog's notices, such as damage or a new leader, go to `logging.getLogger("chiplog")`.
"""

import logging as _logging

from ._chiplog import (
    Batch,
    Client,
    Follower,
    Log,
    Producer,
    Reader,
    Record,
    Session,
    Stream,
    Ticket,
    ReadOnlyLog,
    Watch,
    __version__,
    logging_changed,
)
from ._errors import (
    AlreadyExistsError,
    BusyError,
    CancelledError,
    ClosedError,
    CorruptError,
    DiscardedError,
    DivergedError,
    Error,
    ForkedError,
    FullError,
    InvalidArgumentError,
    IoError,
    LockedError,
    MembershipError,
    NotFoundError,
    NotLeaderError,
    OutOfRangeError,
    PermissionDeniedError,
    PoisonedError,
    RemovedError,
    SealedError,
    SequenceForgottenError,
    SequenceGapError,
    SessionExpiredError,
    TimeoutError,
    TooLargeError,
    TooManySessionsError,
    UnauthenticatedError,
    UnavailableError,
    UndecodableError,
    UnsupportedError,
)
from ._options import ClientOptions, FollowerOptions, Options, ProducerOptions, ReaderOptions, Start, Tls
from . import _close_flag as _close_flag
from ._values import (
    Closed,
    FollowerEvent,
    FollowerStatus,
    Member,
    Metrics,
    NamedLog,
    RemoteInfo,
    Status,
    Unacknowledged,
)

__all__ = [
    "AlreadyExistsError",
    "Batch",
    "BusyError",
    "CancelledError",
    "Client",
    "ClientOptions",
    "Closed",
    "ClosedError",
    "CorruptError",
    "DiscardedError",
    "DivergedError",
    "Error",
    "Follower",
    "FollowerEvent",
    "FollowerOptions",
    "FollowerStatus",
    "ForkedError",
    "FullError",
    "InvalidArgumentError",
    "IoError",
    "LockedError",
    "Log",
    "Member",
    "MembershipError",
    "Metrics",
    "NamedLog",
    "NotFoundError",
    "NotLeaderError",
    "Options",
    "OutOfRangeError",
    "PermissionDeniedError",
    "PoisonedError",
    "Producer",
    "ProducerOptions",
    "Reader",
    "ReaderOptions",
    "Record",
    "RemoteInfo",
    "RemovedError",
    "SealedError",
    "SequenceForgottenError",
    "SequenceGapError",
    "Session",
    "SessionExpiredError",
    "Start",
    "Status",
    "Stream",
    "Ticket",
    "TimeoutError",
    "Tls",
    "TooLargeError",
    "TooManySessionsError",
    "Unacknowledged",
    "UnauthenticatedError",
    "UnavailableError",
    "UndecodableError",
    "UnsupportedError",
    "ReadOnlyLog",
    "Watch",
    "__version__",
    "logging_changed",
]

# Where the program has no handler nothing is written: no library's words belong on standard error unasked.
_logging.getLogger("chiplog").addHandler(_logging.NullHandler())
