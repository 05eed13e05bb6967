"""Errors: one class per kind, all of them subclasses of `Error`."""

import builtins
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ._values import Closed


class Error(Exception):
    """An error of the log. Its class is its kind; its attributes have the details.

    kind: the kind's name, as servers, metrics and the command line show it.
    code: the kind's number, the same in every language and version.
    retryable: whether the same call can succeed later without a repair, once there is space or less load. For an append
        this does NOT mean that the record is not stored: after `TimeoutError`, `UnavailableError`, `ClosedError` and
        `PoisonedError` it may be in the log, and if you append it again, it can be there twice. A record that is
        repeated under its number in a session (`Log.resume_session`), or by a producer itself (`Client.producer`), is
        stored once.
    fatal: whether the handle can no longer append.
    os_error: the operating system's error number, if a system call failed; else None.
    path, offset: for corruption in a local file, the file and the offset in bytes; else None.
    lasting: whether reading again does not help, as far as the replica knows: damage that cannot be repaired, because the log
        has no other replica, or all other voters have damage in the same entries; or a record in an object store, at
        a log that was opened without one.
    retry_after: seconds to wait before the call is made again, if that is known: for a log that has used up its quota,
        `append_bytes_per_second`, and for a record of which a copy has yet to learn which object has it; else None.
    closed: for a producer that was closed with unacknowledged records, how it ended, a `Closed`; else None."""

    kind: ClassVar[str] = "other"
    code: ClassVar[int] = 0
    retryable: ClassVar[bool] = False
    fatal: ClassVar[bool] = False

    os_error: int | None = None
    path: str | None = None
    offset: int | None = None
    lasting: bool = False
    retry_after: float | None = None
    closed: "Closed | None" = None


class IoError(Error, OSError):
    """The operating system refused or failed a call. The message names the path; `errno` is `os_error`."""

    kind, code = "io", 1


class CorruptError(Error):
    """Stored bytes fail their checksum or contradict each other. Nothing corrupt is ever served."""

    kind, code = "corrupt", 2


class PoisonedError(Error):
    """An earlier write or sync failed: the log refuses appends until it is opened again. Appends that were in flight
    have an unknown outcome."""

    kind, code, fatal = "poisoned", 3, True


class FullError(Error):
    """The configured capacity or the disk is full. Nothing was written; discard records to make space."""

    kind, code, retryable = "full", 4, True


class BusyError(Error):
    """The queue of waiting appends stayed at its limit for as long as the caller was willing to wait. An append is
    certainly not in the log."""

    kind, code, retryable = "busy", 5, True


class TimeoutError(Error, builtins.TimeoutError):
    """The time-out passed. After an append the record MAY STILL BE APPENDED; if you append it again, it can be there
    twice."""

    kind, code, retryable = "timeout", 6, True


class DiscardedError(Error, LookupError):
    """The record is below the first index: it was discarded."""

    kind, code = "discarded", 7


class OutOfRangeError(Error, LookupError):
    """There is no such record yet: the index is beyond the last one."""

    kind, code = "out_of_range", 8


class InvalidArgumentError(Error, ValueError):
    """An argument or option is out of its bounds. One of the wrong type is a `TypeError`."""

    kind, code = "invalid_argument", 9


class TooLargeError(Error, ValueError):
    """A record or batch exceeds its size limit."""

    kind, code = "too_large", 10


class LockedError(Error):
    """Another handle or process has the directory open for writing."""

    kind, code, retryable = "locked", 11, True


class ClosedError(Error):
    """The handle was closed. A call on the handle itself did not accept the record. A record that was in flight, as a
    producer's ticket reports, may be in the log."""

    kind, code, fatal = "closed", 12, True


class ForkedError(Error):
    """The handle was made before `fork` and used in the child."""

    kind, code, fatal = "forked", 13, True


class NotFoundError(Error, FileNotFoundError, LookupError):
    """There is no log at this path."""

    kind, code = "not_found", 14


class UnsupportedError(Error):
    """The files were written by a newer version of the format."""

    kind, code, fatal = "unsupported", 15, True


class SessionExpiredError(Error):
    """The session is not known: it was never opened, was closed, or was idle for too long."""

    kind, code = "session_expired", 16


class SequenceGapError(Error):
    """A sequence number skips one or more that the log has not seen."""

    kind, code = "sequence_gap", 17


class SequenceForgottenError(Error):
    """The sequence number was used so long ago that the log no longer remembers its indexes. For a repeated append
    this is a success: the record is in the log, once, and durable. Continue with the next number."""

    kind, code = "sequence_forgotten", 18


class TooManySessionsError(Error):
    """The log's limit of open sessions is reached."""

    kind, code, retryable = "too_many_sessions", 19, True


class NotLeaderError(Error):
    """This replica is not the leader. This attempt did not get into the log."""

    kind, code, retryable = "not_leader", 20, True


class UnavailableError(Error, ConnectionError):
    """No majority, or no server, answered in time. After an append the record MAY BE in the log; if you append it
    again, it can be there twice."""

    kind, code, retryable = "unavailable", 21, True


class RemovedError(Error):
    """This replica was removed from the cluster. Its data can still be read."""

    kind, code, fatal = "removed", 22, True


class MembershipError(Error):
    """This change of membership is not possible, now or ever."""

    kind, code = "membership", 23


class DivergedError(Error):
    """Two logs have different contents: the entries are of another log, or of another history of it. None was stored."""

    kind, code = "diverged", 24


class UnauthenticatedError(Error):
    """The server requires a token, and got none or an unknown one."""

    kind, code = "unauthenticated", 25


class PermissionDeniedError(Error):
    """The token's role does not allow this call."""

    kind, code = "permission_denied", 26


class UndecodableError(Error):
    """A batch in the log is as it was appended, but cannot be decompressed. This is not damage. `Reader.skip_batch`
    skips it."""

    kind, code = "undecodable", 27


class CancelledError(Error):
    """A C or Rust program cancelled a wait. In Python `close` ends waits, with `ClosedError`."""

    kind, code = "cancelled", 28


class AlreadyExistsError(Error):
    """A log of this name exists already."""

    kind, code = "already_exists", 29


class SealedError(Error):
    """The log is sealed: it takes no more appends. Its records can still be read."""

    kind, code = "sealed", 30


BY_CODE: dict[int, type[Error]] = {cls.code: cls for cls in Error.__subclasses__()}
"""The class for each kind's number."""
