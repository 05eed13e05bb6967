"""What goes wrong: one class a kind, all of them `Error`."""

import builtins
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ._values import Closed


class Error(Exception):
    """An error of the log. Which kind it is, its class tells; the rest stands in attributes.

    kind: the kind's name, as servers, metrics and the command line say it.
    code: the kind's number, the same in every language and version.
    retryable: whether the same call can succeed later without anybody mending anything but room or load. Of an append that
        does NOT say that the record is not stored: after `TimeoutError`, `UnavailableError`, `ClosedError` and
        `PoisonedError` of an append it may be in the log, and appended again it can be there twice. What a
        session is given again under its number (`Log.resume_session`), and what a producer sends again by itself
        (`Client.producer`), is stored once.
    fatal: whether the handle is of no more use for appending.
    os_error: the operating system's error number, when it was one that failed; else None.
    path, offset: of corruption in a file here, the file, and where in it, in bytes; else None.
    lasting: of corruption, whether nobody can repair it, as far as the replica knows: the log has no other replica, or all
        other voters have the same entries damaged. Reading again does not help.
    closed: of a producer that was closed with records that are not acknowledged, how it ended, a `Closed`; else None."""

    kind: ClassVar[str] = "other"
    code: ClassVar[int] = 0
    retryable: ClassVar[bool] = False
    fatal: ClassVar[bool] = False

    os_error: int | None = None
    path: str | None = None
    offset: int | None = None
    lasting: bool = False
    closed: "Closed | None" = None


class IoError(Error, OSError):
    """The operating system refused or failed a call. The message names the path; `errno` is `os_error`."""

    kind, code = "io", 1


class CorruptError(Error):
    """Stored bytes fail their checksum or contradict each other. Nothing corrupt is ever served."""

    kind, code = "corrupt", 2


class PoisonedError(Error):
    """A write or a sync failed earlier: the log takes nothing more until it is opened again. Appends that were under
    way have an unknown outcome."""

    kind, code, fatal = "poisoned", 3, True


class FullError(Error):
    """The configured capacity is used up, or the disk is. Nothing was written; discard to make room."""

    kind, code, retryable = "full", 4, True


class BusyError(Error):
    """The queue of waiting appends stayed at its limit for as long as the caller would wait. Of an append: it is surely
    not in the log."""

    kind, code, retryable = "busy", 5, True


class TimeoutError(Error, builtins.TimeoutError):
    """The time-out passed. Of an append: the record MAY STILL BE APPENDED, and appended again it can be there twice."""

    kind, code, retryable = "timeout", 6, True


class DiscardedError(Error, LookupError):
    """The record is below the first index: it was discarded."""

    kind, code = "discarded", 7


class OutOfRangeError(Error, LookupError):
    """There is no such record yet: the index is beyond the last one."""

    kind, code = "out_of_range", 8


class InvalidArgumentError(Error, ValueError):
    """An argument or option is out of its bounds. One of a wrong type is a `TypeError`."""

    kind, code = "invalid_argument", 9


class TooLargeError(Error, ValueError):
    """A record or batch exceeds its size limit."""

    kind, code = "too_large", 10


class LockedError(Error):
    """Another handle or process has the directory open for writing."""

    kind, code, retryable = "locked", 11, True


class ClosedError(Error):
    """The handle was closed. Of an append: the handle's own call did not take it; what was under way, as a producer's ticket
    tells, may be in the log."""

    kind, code, fatal = "closed", 12, True


class ForkedError(Error):
    """The handle was made before `fork` and used in the child."""

    kind, code, fatal = "forked", 13, True


class NotFoundError(Error, FileNotFoundError, LookupError):
    """There is no log at this place."""

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
    """The sequence number was used so long ago that the log no longer remembers its indexes. Where an append is repeated
    this is good news: the record is in the log, once, and durable. Go on with the next number."""

    kind, code = "sequence_forgotten", 18


class TooManySessionsError(Error):
    """As many sessions are open as the log allows."""

    kind, code, retryable = "too_many_sessions", 19, True


class NotLeaderError(Error):
    """This replica is not the leader. This attempt did not get into the log."""

    kind, code, retryable = "not_leader", 20, True


class UnavailableError(Error, ConnectionError):
    """No answer could be had from a majority in time. Of an append: it MAY BE in the log, and appended again it can be there
    twice."""

    kind, code, retryable = "unavailable", 21, True


class RemovedError(Error):
    """This replica was removed from the cluster. Its data can still be read."""

    kind, code, fatal = "removed", 22, True


class MembershipError(Error):
    """A change of membership that cannot be made now or at all."""

    kind, code = "membership", 23


class DivergedError(Error):
    """Two logs are not the same: what is fed is of another log, or of another history of it. Nothing of it was taken."""

    kind, code = "diverged", 24


class UnauthenticatedError(Error):
    """The server wants a token and got none, or one that it does not know."""

    kind, code = "unauthenticated", 25


class PermissionDeniedError(Error):
    """The token's role does not allow this call."""

    kind, code = "permission_denied", 26


class UndecodableError(Error):
    """A batch in the log is as it was appended, and does not unpack: no damage. `Reader.skip_batch` goes on behind it."""

    kind, code = "undecodable", 27


class CancelledError(Error):
    """The end of a wait that was asked for from C or Rust. In Python `close` ends waits, with `ClosedError`."""

    kind, code = "cancelled", 28


BY_CODE: dict[int, type[Error]] = {cls.code: cls for cls in Error.__subclasses__()}
"""The class of each kind's number."""
