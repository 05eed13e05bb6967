from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, NoReturn, SupportsIndex, TypeAlias, TypeVar, final
from typing_extensions import Buffer, Self

from ._aio import Pending
from ._options import ClientOptions, FollowerOptions, Options, ProducerOptions, ReaderOptions, Start
from ._values import Closed, FollowerEvent, FollowerStatus, Member, Metrics, NamedLog, RemoteInfo, Status
from ._errors import Error

__all__ = [
    "Batch",
    "Record",
    "Client",
    "Watch",
    "_Completions",
    "_end",
    "_error_kinds",
    "logging_changed",
    "Follower",
    "Log",
    "Logs",
    "Producer",
    "Reader",
    "Stream",
    "Session",
    "Ticket",
    "ReadOnlyLog",
    "__version__",
]

__version__: str

def logging_changed() -> None: ...

_T = TypeVar("_T")
_Dir: TypeAlias = str | PathLike[str]
_Codec: TypeAlias = Literal["none", "lz4", "zstd"]
_Durability: TypeAlias = Literal["majority", "majority+slices", "object"]
_From: TypeAlias = int | Start | None
# Within class Logs, `list` is its method.
_NamedLogs: TypeAlias = list[NamedLog]
_Ranges: TypeAlias = list[range]
_Tickets: TypeAlias = list[Ticket]

@final
class Record(Buffer):
    """A record: its index, its time, and a view of its bytes. Holds its segment of the log.

    `len(record)`, `bytes(record)`, `memoryview(record)`, and any consumer of a buffer, such as
    `pickle.loads(record)`; where text or bytes are required, `json.loads(record.decode())`. Immutable; any thread
    may use it."""

    @property
    def index(self) -> int:
        """Its index in the log, from 1."""
    @property
    def timestamp(self) -> int:
        """When the log accepted it, in milliseconds since 1970."""
    @property
    def data(self) -> memoryview:
        """Its bytes: a read-only view, not a copy. It holds the segment until it is dropped."""
    def copy(self) -> bytes:
        """Returns a copy of its bytes, which holds nothing of the log.

        Does not block; a copy above 64 KiB is made without the GIL."""
    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Returns the text of its bytes, as `bytes.decode` does.

        `encoding` and `errors` are those of `bytes.decode`. Does not block. Raises `UnicodeDecodeError`, `LookupError`."""
    def __bytes__(self) -> bytes: ...
    def __len__(self) -> int: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Batch:
    """Records that were appended together: a sequence of `Record`. Holds their segment of the log.

    `len(batch)`, `batch[n]` (from 0; `IndexError`), iteration. Immutable; any thread may use it. It exports Arrow's
    PyCapsules."""

    @property
    def first(self) -> int:
        """Index of the first record, from 1."""
    @property
    def last(self) -> int:
        """Index of the last record."""
    @property
    def timestamp(self) -> int:
        """When the log accepted them, in milliseconds since 1970."""
    @property
    def data(self) -> memoryview:
        """The bytes of all records, one after the other: a read-only view, not a copy. It holds the segment until it
        is dropped."""
    @property
    def offsets(self) -> memoryview:
        """The starts and ends of records in `data`: a read-only view of 32-bit integers, one more than there are
        records."""
    def views(self) -> list[memoryview]:
        """Returns read-only views of all records' bytes, a list of memoryview. Each holds the segment.

        Does not block."""
    def copies(self) -> list[bytes]:
        """Returns copies of all records' bytes, a list of bytes, which hold nothing of the log.

        Does not block; copies above 64 KiB are made without the GIL."""
    def to_numpy(self) -> tuple[Any, Any]:
        """Returns bytes and offsets as numpy arrays, of uint8 and int32, over the same memory.

        Does not block. Raises `ImportError`: numpy is not installed."""
    def to_arrow(self) -> Any:
        """Returns the records as an Arrow array of binary values over the same memory.

        Other libraries accept the batch itself.

        Does not block. Raises `ImportError`: pyarrow is not installed."""
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: SupportsIndex, /) -> Record: ...
    def __iter__(self) -> Iterator[Record]: ...

@final
class Reader:
    """Records in order, from a log, a copy of one, or servers: an iterator of `Record`, also for `async for`.

    Made by `read`, `tail` and `reader` of a handle, which it keeps open until it is closed or dropped. Each step
    blocks for the disk or the network, and if the reader follows also for the next record, without the GIL; Ctrl-C
    ends the wait. Threads may share it: each record goes to one of them. One asyncio task at a time may wait; a
    cancelled one has taken nothing.

    Continuous reading of local files is prefetched on another thread: up to 9 MiB plus one batch. Prefetched
    records hold their segments, and are returned even if they are discarded meanwhile.

    A step raises `DiscardedError`: the next record was discarded meanwhile; `OutOfRangeError`: there is no such
    record; `CorruptError`, `IoError`: the files; `UndecodableError`: a batch that was appended in this state (see
    `skip_batch`); `TimeoutError`, `UnavailableError`, `UnauthenticatedError`, `PermissionDeniedError`: the servers;
    `ClosedError`: the reader was closed, or it reached the end of a closed log; `ForkedError`: in a forked child.
    `with` and `async with` close it."""

    @property
    def start(self) -> int | None:
        """Index of the first record, from 1, also after reading on; None: no server has determined it yet.

        For `tail()` the next record when it was made. It may not exist yet."""
    @property
    def position(self) -> int | None:
        """Index of the next record, from 1; None: no server has determined it yet."""
    @property
    def server(self) -> str | None:
        """The server that it reads from, "host:port"; None: there is none now, local files, or a thread waits for a
        record."""
    def views(self) -> Stream[memoryview]:
        """Continues with read-only views of the records' bytes. Returns a `Stream` of memoryview.

        Each view holds its segment of the log. The stream shares this reader's position. Does not block."""
    def copies(self) -> Stream[bytes]:
        """Continues with copies of the records' bytes, which hold nothing. Returns a `Stream` of bytes.

        The stream shares this reader's position. Does not block."""
    def batches(self) -> Stream[Batch]:
        """Continues with batches. Returns a `Stream` of `Batch`.

        The stream shares this reader's position; the first batch is the rest of the current one. Does not block."""
    def seek(self, index: int) -> None:
        """Moves to the record `index`, from 1, which may be the next one to be appended. Returns None.

        Blocks while another thread waits for a record, without the GIL; Ctrl-C ends the wait.

        Raises, for local files, `OutOfRangeError`, `DiscardedError`: there is no such record (for servers the next
        step does); `InvalidArgumentError`, `TypeError`: `index`; `ClosedError`, `ForkedError`."""
    def skip_batch(self) -> int | None:
        """Skips a batch for which the last step raised `UndecodableError`.

        If the last step did something else, nothing changes. Returns the index of the next record; None: a reader
        over the network that has not begun.

        Does not block. Raises `ClosedError` if the reader is closed."""
    def wait(self, timeout: float | None = None) -> bool:
        """Waits until there is a record to read. Returns True; False: not in time, or the end was reached.

        `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises what a step of the reader does; `InvalidArgumentError`, `TypeError`: `timeout`."""
    def close(self) -> None:
        """Closes the reader; calls that wait with it raise `ClosedError`. Returns None. Releases what it reads from.

        Does not block. Any thread may call it, more than once."""
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Record: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, Record]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> Coroutine[Any, Any, Self]: ...
    def __aexit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Coroutine[Any, Any, None]: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Stream(Generic[_T]):
    """A reader's records in another form, views, copies or batches: an iterator, also for `async for`.

    Made by `batches` of a handle, and by `Reader.views`, `copies`, `batches`. Blocks, raises and is shared as its
    `Reader`.

    It exports Arrow's PyCapsules, as its `Reader` does. `pyarrow.table(log.batches())`, and other consumers of
    Arrow, read it to the end, as tables of `index` (uint64), `time` (timestamp[ms, UTC]) and `data` (binary). There
    is one table for each batch of the log, over its own bytes; batches below 64 KiB that are already there are
    copied together, into tables of about 1 MiB. A stream that follows has no end: read it batch by batch, for
    example with `pyarrow.RecordBatchReader.from_stream`. Errors, and a Ctrl-C, are raised as the consumer's own
    error, with the text: with pyarrow an `OSError`."""

    @property
    def reader(self) -> Reader:
        """The `Reader` it reads from, with its position."""
    def close(self) -> None:
        """Closes its reader; calls that wait with it raise `ClosedError`. Returns None.

        Does not block. Any thread may call it, more than once."""
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> _T: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, _T]: ...
    @classmethod
    def __class_getitem__(cls, _item: object) -> Any: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Ticket:
    """An append in flight: gives the index of its first record, to any number of callers, also by `await`.

    Made by `submit` and similar calls. Any thread may use it. `await ticket` gives the index, and raises what
    `wait` does; a cancelled task does not affect the append. If a producer's record fails and its ticket is neither
    waited for nor awaited, the failure counts as not reported: `flush` and `close` of the producer, or the end of
    the program, report it."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits until the append is in the log. Returns the index of its first record, from 1.

        `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait. The append
        continues, and can be waited for again.

        Raises `TimeoutError`, `UnavailableError`, `PoisonedError`, `ClosedError`: the append MAY STILL BE STORED,
        or be in the log: if you append it again, it can be there twice. `SequenceForgottenError`: it IS in the log.
        `FullError`, `BusyError`, `TooLargeError`, `TooManySessionsError`, `SessionExpiredError`,
        `SequenceGapError`: it is certainly not in the log. `InvalidArgumentError`, `TypeError`: `timeout`."""
    def done(self) -> bool:
        """Returns whether it has an outcome, success or failure. `wait` returns which.

        Does not block."""
    @property
    def durability(self) -> _Durability | None:
        """How durable the append was when it was acknowledged: "majority", "majority+slices" or "object". None: it has
        no outcome yet, it has failed, it is a command, or the server is of an earlier version and does not tell.

        "majority": on stable storage at a majority of the voters. "majority+slices": the same, and soon after in the
        object store, too. "object": in the object store, and a reference to it at a majority. In a log that has or had
        the class "object", the payload of the first two can be in the object store alone, and a reference at a majority.
        Does not block."""
    def add_done_callback(self, fn: Callable[[Ticket], object]) -> None:
        """Calls `fn(ticket)` once it has an outcome, success or failure. Returns None.

        If it has one already, calls it at once on this thread. Otherwise a thread of the package calls it; that
        thread calls all callbacks of the process, one after the other. A callback may append and wait; a slow one
        delays other callbacks, never the log. `close()` of the log completes its tickets; their callbacks may still
        be running when it returns. Exceptions of a callback go to `sys.unraisablehook`. At the end of the program
        the callbacks that are due are called, and no others. A forked child calls none of its parent's.

        Does not block, except while `fn` runs. Raises `TypeError`: `fn` is not callable."""
    def __await__(self) -> Generator[Any, None, int]: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Log:
    """A durable log in a directory: the only handle that appends to it.

    `Log(dir, options=None)` opens the log in `dir`, a str or path, or creates it. `options`: `Options`, None: the
    defaults. Blocks during recovery, without the GIL; Ctrl-C ends the wait, and the log is closed once it is open.

    Raises `LockedError`: another handle or process has it open; `NotFoundError`: there is none, and `create` is
    False; `CorruptError`, `UnsupportedError`, `IoError`: the files; `InvalidArgumentError`, `TypeError`: an option.

    Any number of threads may use it. In a forked child each call raises `ForkedError`. `with` and `async with`
    close it.
    After `close()` calls raise `ClosedError`, except for `close`, `path`, `options` and `poison_cause`; readers
    continue to the end.

    `Logs` has many named logs in one directory, each a `Log`. Closing one closes only the handle. `path`, `options`,
    `metrics()`, and of `status()` all but the id and the indexes, are those of its group."""

    def __new__(cls, dir: _Dir, options: Options | None = None) -> Self: ...
    def append(self, record: Buffer, timeout: float | None = None) -> int:
        """Appends a record and blocks until it is on stable storage. Returns its index, from 1.

        `record`: bytes or an object with a buffer, up to `options.record_bytes_max` bytes. `timeout`: seconds, from
        0; None: no limit. Waits for space in the queue for up to `options.queue_timeout` seconds. Blocks, without
        the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`, `UnavailableError`, `PoisonedError`: the record MAY STILL BE APPENDED, or be in the
        log: if you append it again outside a session, it can be there twice. The same holds after Ctrl-C.
        `BusyError` (no space in the queue in time), `FullError`, `TooLargeError`, `ClosedError`, `TypeError`,
        `InvalidArgumentError` (an argument): the record is certainly not in the log."""
    def append_batch(
        self, records: Iterable[Buffer], codec: _Codec = "none", timeout: float | None = None
    ) -> range:
        """Appends records as one batch, all or none, and waits for stable storage. Returns the range of their indexes.

        `records`: an iterable of bytes or objects with a buffer, at least one, together up to
        `options.batch_bytes_max` bytes. `codec`: the compression, "none", "lz4" or "zstd". `timeout`: seconds, from
        0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises what `append` does. After `TimeoutError`, `UnavailableError`, `PoisonedError` and Ctrl-C the records
        MAY STILL BE APPENDED; if you append them again, they can be there twice. `InvalidArgumentError` also if
        there are no records."""
    def submit(self, record: Buffer) -> Ticket:
        """Submits a record. Returns a `Ticket` for its index.

        `record`: bytes or an object with a buffer, up to `options.record_bytes_max` bytes. Blocks only while the
        queue is full, for up to `options.queue_timeout` seconds, without the GIL; Ctrl-C ends the wait.

        Raises `BusyError` (no space in that time), `FullError`, `TooLargeError`, `PoisonedError`, `ClosedError`,
        `TypeError`: the record was not accepted."""
    def submit_batch(self, records: Iterable[Buffer], codec: _Codec = "none") -> Ticket:
        """Submits records as one batch, all or none. Returns a `Ticket` for the index of the first.

        `records`: an iterable of bytes or objects with a buffer, at least one, together up to
        `options.batch_bytes_max` bytes. `codec`: the compression, "none", "lz4" or "zstd". Blocks only while the
        queue is full, for up to `options.queue_timeout` seconds, without the GIL; Ctrl-C ends the wait.

        Raises what `submit` does, and `InvalidArgumentError`: no records, or an unknown codec. None of them was
        accepted."""
    def try_submit(self, record: Buffer) -> Ticket:
        """As `submit`, with `record`, but raises `BusyError` if the queue is full.

        Does not block. Raises what `submit` does: the record was not accepted."""
    def try_submit_batch(self, records: Iterable[Buffer], codec: _Codec = "none") -> Ticket:
        """As `submit_batch`, with `records` and `codec`, but raises `BusyError` if the queue is full.

        Does not block, except for compression, without the GIL. Raises what `submit_batch` does: none of them was
        accepted."""
    def check_room(self, bytes: int) -> None:
        """Checks whether there is space for an append of `bytes` bytes, in addition to waiting ones. Returns None.

        Does not block. Raises `FullError`: there is not enough space; `PoisonedError`, `ClosedError`;
        `InvalidArgumentError`, `TypeError`: `bytes`."""
    def append_async(self, record: Buffer) -> Pending[int]:
        """Appends a record. When awaited, gives its index, from 1, once it is on stable storage.

        `record`: bytes or an object with a buffer, up to `options.record_bytes_max` bytes. Does not block: the
        append begins at once, and waits for space in the queue without a limit. A cancelled task does not know
        whether the record is appended.

        Raises what `append` does, but never `TimeoutError`, and `BusyError` only behind the log's rate
        (`append_bytes_per_second`). `RuntimeError`: no event loop runs on this thread; then nothing is appended."""
    def append_batch_async(self, records: Iterable[Buffer], codec: _Codec = "none") -> Pending[int]:
        """Appends records as one batch, all or none. When awaited, gives the index of the first once they are stored.

        `records`: an iterable of bytes or objects with a buffer, at least one, together up to
        `options.batch_bytes_max` bytes. `codec`: the compression, "none", "lz4" or "zstd". Does not block, except
        for compression, without the GIL. Waits for space in the queue without a limit. A cancelled task does not
        know whether the records are appended.

        Raises what `append_batch` does, but never `TimeoutError`, and `BusyError` only behind the log's rate
        (`append_bytes_per_second`). `RuntimeError`: no event loop runs on this thread; then nothing is appended."""
    def get(self, index: int) -> Record:
        """Returns the `Record` at `index`, from 1.

        Blocks only for the disk, without the GIL. Raises `OutOfRangeError`: the record does not exist yet;
        `DiscardedError`: it was discarded; `InvalidArgumentError`, `TypeError`: `index`; `CorruptError`, `IoError`:
        the files; `ClosedError`."""
    def report_damage(self, index: int) -> None:
        """Reports that the bytes of the record at `index` are damaged in this directory. Returns None.

        A replica of a cluster scrubs the record's segment at once and repairs damage from other replicas. A log on
        its own only counts and logs it. Reads report damage by themselves. A report about a sound record costs only
        the scrub. Blocks for the disk, without the GIL, not for the repair.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `UnavailableError`: the whole log is
        under repair; `InvalidArgumentError`, `TypeError`: `index`; `ClosedError`."""
    def read(self, start: _From = None) -> Reader:
        """Reads from `start` on. Returns a `Reader` that ends at the end of the log.

        `start`: an index from 1, a `Start`, or None: the first record. Blocks only for the disk, without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: an
        invalid `start`; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def tail(self, start: _From = None) -> Reader:
        """Reads from `start` on, and waits at the end for new records. Returns a `Reader`.

        Without `start` it begins at the end: existing records are not read. `Reader.start` is the index of its
        first record.

        `start`: an index from 1, a `Start`, or None: the next record to be appended. Blocks only for the disk,
        without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: an
        invalid `start`; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def batches(self, start: _From = None, *, follow: bool = False) -> Stream[Batch]:
        """Reads in batches from `start` on. Returns a `Stream` of `Batch`.

        `start`: an index from 1, a `Start`, or None: the first record. `follow`: whether it waits at the end for
        new records; if not, it ends there. Blocks only for the disk, without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: an
        invalid `start`; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def discard(self, first: int) -> None:
        """Discards all records below `first`, an index from 1, durably. Returns None.

        At or below the first record it does nothing. A `first` beyond the end moves the log's indexes forward for
        good: the log is empty then, and the next record gets the index `first`. `status().last_index + 1` empties the
        log without skipping an index. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `PoisonedError`, `ClosedError`, `FullError`, `BusyError`; `InvalidArgumentError`, `TypeError`:
        `first`. Repeating the call does no harm."""
    def submit_discard(self, first: int) -> Ticket:
        """Submits a discard of all records below `first`, as `discard` does. Returns a `Ticket`.

        It is done once the discard is durable. Its index is at or below the log's first index then. Does not block. Raises what `discard` does."""
    def submit_barrier(self, timeout: float = 30.0) -> Ticket:
        """Submits a barrier, as `barrier` does. Returns a `Ticket` for the index of the last record then.

        `timeout`: seconds, from 0: the time limit of the barrier. Does not block. Raises what `barrier` does;
        `UnavailableError` comes from the ticket."""
    def first_local_index(self) -> int:
        """Returns the first record in this replica's files; in an empty log, the index of the next append.

        Those before it are in the object store: reads fetch them from there. Blocks for the disk, without the GIL, if
        the log is one of several named ones.

        Raises `CorruptError`, `IoError`: the oldest file cannot be read; `ClosedError`: this handle was closed."""
    def barrier(self, timeout: float = 30.0) -> int:
        """Waits until all records appended before the call can be read here. Returns the last index then; 0: none.

        `timeout`: seconds, from 0. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `UnavailableError`: not in time; `PoisonedError`, `ClosedError`, `BusyError`; `InvalidArgumentError`,
        `TypeError`: `timeout`."""
    def wait_for(self, index: int, timeout: float | None = None) -> None:
        """Waits until record `index`, from 0, exists or is discarded. Returns None.

        `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`: not in time; `ClosedError`, `PoisonedError`: this handle will not return the record;
        `InvalidArgumentError`, `TypeError`: an argument."""
    def wait_for_async(self, index: int) -> Pending[None]:
        """`wait_for`, to be awaited: gives None once record `index`, from 0, exists or is discarded.

        Does not block. To limit the wait, cancel it or use `asyncio.timeout`.

        Raises `ClosedError`, `PoisonedError`: this handle will not return the record; `InvalidArgumentError`,
        `TypeError`: `index`; `RuntimeError`: no event loop runs on this thread."""
    def session(self) -> Session:
        """Opens an exactly-once session, durably. Returns a `Session`.

        Blocks, without the GIL; Ctrl-C ends the wait. Raises `TooManySessionsError`: `options.sessions_max`
        sessions are open, and all have appended; `FullError`, `BusyError`, `PoisonedError`, `ClosedError`."""
    def resume_session(self, id: int, next_sequence: int) -> Session:
        """Resumes a session. Returns a `Session`.

        `id`: `Session.id`. `next_sequence`: the number of its next append, from 1. A repeated append under its
        original number gets its original index, and is stored once. Does not block, and does not check whether the
        log still knows the session: its first append raises `SessionExpiredError` or `SequenceGapError`.

        Raises `InvalidArgumentError`, `TypeError`: an argument; `ClosedError`."""
    def status(self) -> Status:
        """Returns `Status`: the current state of the log.

        Does not block. Raises `ClosedError`."""
    def metrics(self) -> Metrics:
        """Returns `Metrics`: the log's counters since it was opened, and the work that waits in it now.

        Does not block. Raises `ClosedError`."""
    def log_options(self) -> dict[str, int]:
        """Returns the options that are set for the log, a dict of names and values.

        These are the options that this replica knows to be committed. They are the same on every replica, and
        override those that a leader was opened with. Names and units: see `set_log_options`. Does not block. Raises
        `ClosedError`."""
    def set_log_options(self, changes: Mapping[str, int | None], timeout: float = 10.0) -> None:
        """Sets options of the log, on the leader, and waits until that is committed. Returns None.

        `changes`: a mapping of names to values: `retention_bytes`, `capacity_bytes`, `record_bytes_max`, `object_bytes`,
        in bytes; `retention_age`, `session_idle_max`, `object_age`, in milliseconds; `sessions_max`, `session_window`;
        `append_bytes_per_second`; `payload_slices`, 1 or 0; `object_rows`. A value of None unsets the option: the leader's own applies then.
        2**64 - 1: no limit, for
        retention, capacity, rate and `object_age`. Options that are not named do not change. Once `object_bytes` is set, the
        log has objects, and it cannot be unset; a log with an object store sets it itself. `payload_slices` and `object_rows` cannot be unset either.
        A named log has
        `retention_bytes`, `retention_age`, `capacity_bytes`, `record_bytes_max`, `sessions_max`, `session_idle_max` and
        `append_bytes_per_second` of its own; the others are set for its group.
        `timeout`: seconds, from 0: how long to wait for members that have not yet confirmed that they support options of the
        log. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `InvalidArgumentError`, `TypeError`: an option or its value; `UnsupportedError`: a member runs an
        earlier version; `NotLeaderError`, `RemovedError`, `FullError`, `BusyError`: nothing was changed;
        `UnavailableError`: the change may or may not take effect; `PoisonedError`, `ClosedError`. Repeating the
        call does no harm."""
    def submit_set_log_options(self, changes: Mapping[str, int | None], timeout: float = 10.0) -> Ticket:
        """Submits options of the log, as `set_log_options` does. Returns a `Ticket`, done once that is committed.

        `changes`: as for `set_log_options`. `timeout`: seconds, from 0: how long to wait for members. The ticket's
        index has no meaning. Does not block. Raises what `set_log_options` does."""
    @property
    def record_bytes_max(self) -> int:
        """Bytes of the largest record that the log accepts: the log's option, or the one it was opened with if that is
        not set."""
    @property
    def session_window(self) -> int:
        """The number of a session's latest batches that the log remembers: the log's option, or the one it was opened
        with."""
    def shortage_cause(self) -> Error | None:
        """Returns why this replica does not accept the log's records, an `Error`; None: it accepts them.

        `FullError`, `IoError`: its disk has no space; `TooLargeError`: its segments are too small for what the
        leader sends; `InvalidArgumentError`: its options conflict with those of the log. Does not block. Raises
        `ClosedError`."""
    def poison_cause(self) -> Error | None:
        """Returns why the log accepts no more appends, the `Error` of a failed write or sync; None: it accepts them.

        Does not block. Also after `close()`."""
    @property
    def options(self) -> Options:
        """The `Options` in force, each with its value.

        The given options, the defaults, and limits lowered to fit the segment size. Also after `close()`."""
    @property
    def path(self) -> Path:
        """The directory, a `pathlib.Path`. Also after `close()`."""
    def close(self) -> None:
        """Closes the log: submitted appends are still written. Returns None. Any thread may call it, more than once.

        Blocks until all is durable and the directory is unlocked, without the GIL; Ctrl-C ends the wait, and
        closing continues. Readers continue to the end; calls that wait there, or in `wait_for`, raise
        `ClosedError`. A log of `Logs` stays open, and so do its waiting calls: only this handle is closed, and that
        does not block.

        Raises `PoisonedError`: an earlier write or sync failed, and some appends have an unknown outcome."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> Coroutine[Any, Any, Self]: ...
    def __aexit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Coroutine[Any, Any, None]: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Session:
    """Appends that take effect exactly once and in order, even if repeated. Made by `Log.session`,
    `Log.resume_session`.

    Each append has a number. To repeat one after a `TimeoutError`, or in another process, keep `id` and the
    `next_sequence` from before it. Then append the same records to `log.resume_session(id, that number)`: they get
    their original indexes. If you append them again to the same session object, they get the next number, and can
    be stored twice.

    Any thread may use it, one at a time. In a forked child each call raises `ForkedError`."""

    @property
    def id(self) -> int:
        """The session's permanent id, an integer. Raises `ClosedError` after `close()`."""
    @property
    def next_sequence(self) -> int:
        """The number that the next append gets, from 1. Raises `ClosedError` after `close()`."""
    def append(self, record: Buffer, timeout: float | None = None) -> int:
        """Appends a record, once, and waits until it is on stable storage. Returns its index, from 1.

        `record`: bytes or an object with a buffer, up to the log's `Options.record_bytes_max` bytes. `timeout`:
        seconds, from 0; None: no limit. Waits for space in the session's window and in the log's queue for up to
        `Options.queue_timeout` seconds. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`, `UnavailableError`, `PoisonedError`: the record MAY STILL BE APPENDED; to append it
        again without storing it twice, resume the session at its number. The same holds after Ctrl-C.
        `SequenceForgottenError`: it IS in the log; continue with the next. `BusyError`, `FullError`,
        `TooLargeError`, `SessionExpiredError`, `SequenceGapError`, `ClosedError`, `TypeError`,
        `InvalidArgumentError` (an argument): it is certainly not in the log."""
    def append_batch(
        self, records: Iterable[Buffer], codec: _Codec = "none", timeout: float | None = None
    ) -> range:
        """Appends records as one batch, once, all or none, and waits for stable storage. Returns their indexes.

        `records`: an iterable of bytes or objects with a buffer, at least one, together up to the log's
        `Options.batch_bytes_max` bytes. `codec`: the compression, "none", "lz4" or "zstd". `timeout`: seconds, from
        0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises what `append` does, for all the records: after `TimeoutError` they MAY STILL BE APPENDED.
        `InvalidArgumentError` also if there are no records."""
    def submit(self, record: Buffer) -> Ticket:
        """Submits a record, once. Returns a `Ticket` for its index.

        `record`: bytes or an object with a buffer, up to the log's `Options.record_bytes_max` bytes. Blocks while
        the session's window or the log's queue is full, for up to `Options.queue_timeout` seconds, without the GIL;
        Ctrl-C ends the wait.

        Raises `BusyError` (no space in that time), `FullError`, `TooLargeError`, `PoisonedError`, `ClosedError`,
        `TypeError`: the record was not accepted, and the next append gets its number. The ticket can raise the
        other errors of `append`."""
    def submit_batch(self, records: Iterable[Buffer], codec: _Codec = "none") -> Ticket:
        """Submits records as one batch, once, all or none. Returns a `Ticket` for the index of the first.

        `records`: an iterable of bytes or objects with a buffer, at least one, together up to the log's
        `Options.batch_bytes_max` bytes. `codec`: the compression, "none", "lz4" or "zstd". Blocks as `submit` does.

        Raises what `submit` does, and `InvalidArgumentError`: no records, or an unknown codec. None of them was
        accepted."""
    def try_submit(self, record: Buffer) -> Ticket:
        """As `submit`, with `record`, but raises `BusyError` if there is no space, or another thread uses the session.

        Does not block. Raises what `submit` does: the record was not accepted."""
    def try_submit_batch(self, records: Iterable[Buffer], codec: _Codec = "none") -> Ticket:
        """As `submit_batch`, with `records` and `codec`, but raises `BusyError` if it would have to wait.

        Does not block, except for compression, without the GIL. Raises what `submit_batch` does: none of them was
        accepted."""
    def close(self) -> None:
        """Ends the session once all its appends have an outcome. Returns None.

        The log forgets the session. Without this call the session can be resumed.
        Blocks, without the GIL; Ctrl-C ends the wait. Raises `PoisonedError`, `FullError`, `BusyError`, `ClosedError`
        (of the log): the session may be open in the log, and can be closed again. A close after one that succeeded
        does nothing."""
    def __reduce__(self) -> NoReturn: ...

@final
class Logs:
    """Many named logs in one directory, each a `Log`: thousands of them cost little more than one.

    `Logs(dir, *, groups=2, directories=None, options=None)` opens the logs in `dir`, a str or path, or makes the
    directory. A log has indexes from 1, readers, sessions and discards of its own. Logs are kept in groups: those of a
    group share its threads, writes and syncs. `groups`: how many there are, from 1 to 1,024; a directory that is opened
    with a larger number gets more groups, a smaller one leaves all there are. `directories`: further directories for
    the groups, up to 64, each meant to be on a disk of its own; they have to exist, apart from each other and from
    `dir`. A new group goes to the one with the fewest groups, the first of these; one that exists is found in any of
    them and in `dir`. `options`: `Options` of each group, without `retention_bytes` and `retention_age`; with `object_store` each
    group has objects of its own, and `local_bytes`, `local_age` and `cache_bytes` are of each group. None: the
    defaults. Segments have a table of the group's logs: below 8 MiB, set `sessions_max` to make room for it. Blocks
    during recovery, without the GIL; Ctrl-C ends the wait, and the logs are closed once they are open.

    Raises `LockedError`: another handle or process has them open; `NotFoundError`: there are none, and `create` is
    False; `DivergedError`: a group's directory was replaced by another one, is there twice, or is in one of
    `directories` that cannot be used now, such as that of a disk that is not mounted; `CorruptError`,
    `UnsupportedError`, `IoError`: the files; `InvalidArgumentError`, `TypeError`: an argument or option, or `dir` holds
    one log on its own.

    Any number of threads may use it. In a forked child each call raises `ForkedError`. `with` and `async with`
    close it. After `close()` calls raise `ClosedError`. Logs that are not closed stay open until this handle and those
    of all its logs are dropped."""

    def __new__(
        cls,
        dir: _Dir,
        *,
        groups: int = 2,
        directories: Sequence[_Dir] | None = None,
        options: Options | None = None,
    ) -> Self: ...
    def create(self, name: str, *, beside: str | None = None) -> Log:
        """Creates a log, durably. Returns its `Log`.

        `name`: 1 to 249 of the characters `A-Z a-z 0-9 . _ -`, the first not `_`, then perhaps `/` and a partition's
        number. `beside`: the name of a log in whose group it is created, so that both can be appended to together;
        None: the group with the fewest logs. Blocks, without the GIL; Ctrl-C ends the wait, and creating continues.

        Raises `AlreadyExistsError`; `InvalidArgumentError`: the name; `NotFoundError`: `beside`; `FullError`: the disk
        is full, or the group has no room for more logs; `BusyError`, `PoisonedError`, `ClosedError`, `TypeError`.
        Repeating the call does no harm: a log that was created is then reported as existing."""
    def get(self, name: str) -> Log:
        """Returns the `Log` of this `name`. Keep it: each call makes another handle of the same log.

        Blocks only for the disk, without the GIL; Ctrl-C ends the wait. Raises `NotFoundError`: there is none;
        `CorruptError`, `IoError`: the files; `ClosedError`, `TypeError`."""
    def delete(self, name: str) -> None:
        """Deletes the log of this `name` with all its records, durably. Returns None.

        Its handles raise `NotFoundError` from then on, and so do its readers behind the last record; records that were
        read stay valid. A new log can have the name. Blocks, without the GIL; Ctrl-C ends the wait, and deleting continues.

        Raises `NotFoundError`; `UnavailableError`: it is deleted, and its group drops its records later; `FullError`,
        `BusyError`, `PoisonedError`, `ClosedError`, `TypeError`. Repeating the call does no harm."""
    def seal(self, name: str) -> None:
        """Seals the log of this `name`, durably: its appends raise `SealedError`, its records stay. Returns None.

        Blocks, without the GIL; Ctrl-C ends the wait, and sealing continues. Raises what `delete` does."""
    def list(self, prefix: str = "", after: str = "", limit: int | None = None) -> _NamedLogs:
        """Returns a list of `NamedLog`, by name: logs whose names begin with `prefix` and come after the name `after`.

        `limit`: the most that are returned, from 0; None: all. For the next page pass the last name of this one as
        `after`, which need not exist. Blocks only for the disk, without the GIL.

        Raises `CorruptError`, `IoError`: the files; `InvalidArgumentError`, `TypeError`: an argument; `ClosedError`."""
    def info(self, name: str) -> NamedLog:
        """Returns the `NamedLog` of this `name`: the state of one log.

        Blocks only for the disk, without the GIL. Raises `NotFoundError`; `CorruptError`, `IoError`: the files;
        `ClosedError`, `TypeError`."""
    def append_together(
        self, appends: Iterable[tuple[Log, Iterable[Buffer]]], codec: _Codec = "none", timeout: float | None = None
    ) -> _Ranges:
        """Appends a batch to each of several logs, all or none, and waits for stable storage. Returns a list of ranges.

        No crash and no copy of the group separates them; readers of two of the logs can see one a moment before the
        other. `appends`: an iterable of pairs, a `Log` of these and an iterable of records, bytes or objects with a
        buffer, at least one; a log may occur more than once. The logs are of one group (see `create`), and all records
        together take up to `options.block_bytes_max` bytes. `codec`: the compression, "none", "lz4" or "zstd".
        `timeout`: seconds, from 0; None: no limit. The ranges are those of the records' indexes, in the order of
        `appends`. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`, `PoisonedError`: all MAY STILL BE APPENDED, or be in the logs: if you append them again,
        they can be there twice. The same holds after Ctrl-C. `NotFoundError`, `SealedError`: one of the logs takes no
        appends; `BusyError`, `FullError`, `TooLargeError`, `ClosedError`, `TypeError`, `InvalidArgumentError` (an
        argument, or logs of different groups): nothing was appended to any of them."""
    def submit_together(
        self, appends: Iterable[tuple[Log, Iterable[Buffer]]], codec: _Codec = "none"
    ) -> _Tickets:
        """Submits a batch to each of several logs, all or none. Returns a list of `Ticket`, one for each batch.

        `appends`, `codec`: as for `append_together`. The tickets are in the order of `appends`, each for the index of its
        batch's first record; all have the same outcome, at the same time. Blocks only while the group's queue is full, for
        up to `options.queue_timeout` seconds, without the GIL; Ctrl-C ends the wait.

        Raises `BusyError` (no space in that time), `FullError`, `TooLargeError`, `PoisonedError`, `ClosedError`,
        `TypeError`, `InvalidArgumentError` (an argument, or logs of different groups or of other `Logs`): nothing was
        accepted. `NotFoundError`, `SealedError`, from each ticket: one of the logs takes no appends."""
    def try_submit_together(
        self, appends: Iterable[tuple[Log, Iterable[Buffer]]], codec: _Codec = "none"
    ) -> _Tickets:
        """As `submit_together`, with `appends` and `codec`, but raises `BusyError` if the queue is full.

        Does not block, except for compression, without the GIL. Raises what `submit_together` does: nothing was
        accepted."""
    def append_together_async(
        self, appends: Iterable[tuple[Log, Iterable[Buffer]]], codec: _Codec = "none"
    ) -> Pending[_Ranges]:
        """`append_together`, to be awaited: gives the list of ranges once all records are stored.

        `appends`, `codec`: as for `append_together`. Does not block, except for compression, without the GIL. A
        cancelled task does not know whether the records are appended.

        Raises what `append_together` does, but never `TimeoutError`. `RuntimeError`: no event loop runs on this thread;
        then nothing is appended."""
    def close(self) -> None:
        """Closes all logs: submitted appends are still written. Returns None. Any thread may call it, more than once.

        Blocks until all is durable and the directory is unlocked, without the GIL; Ctrl-C ends the wait, and closing
        continues. Appends to the logs raise `ClosedError` from then on. Readers continue to the end; calls that wait
        there, or in `wait_for`, raise `ClosedError`.

        Raises `PoisonedError`: an earlier write or sync failed, and some appends have an unknown outcome."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> Coroutine[Any, Any, Self]: ...
    def __aexit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Coroutine[Any, Any, None]: ...
    def __reduce__(self) -> NoReturn: ...

@final
class ReadOnlyLog:
    """Read-only access to a log in a directory, also while another process appends to it.

    `ReadOnlyLog(dir)` opens the log in `dir`, a str or path. Blocks until its files are read, without the GIL; Ctrl-C
    ends the wait. Raises `NotFoundError`: there is none; `CorruptError`, `UnsupportedError`, `IoError`: the files.

    Any number of threads may use it. In a forked child each call raises `ForkedError`. `with` and `async with`
    close it."""

    def __new__(cls, dir: _Dir) -> Self: ...
    def get(self, index: int) -> Record:
        """Returns the `Record` at `index`, from 1.

        Blocks only for the disk, without the GIL. Raises `OutOfRangeError`: the record does not exist yet;
        `DiscardedError`: it was discarded; `InvalidArgumentError`, `TypeError`: `index`; `CorruptError`, `IoError`:
        the files; `ClosedError`."""
    def read(self, start: _From = None) -> Reader:
        """Reads from `start` on. Returns a `Reader` that ends at the end of the log.

        `start`: an index from 1, a `Start`, or None: the first record. Blocks only for the disk, without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: an
        invalid `start`; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def tail(self, start: _From = None) -> Reader:
        """Reads from `start` on, and waits at the end for new records. Returns a `Reader`.

        Without `start` it begins at the end: existing records are not read. `Reader.start` is the index of its
        first record.

        `start`: an index from 1, a `Start`, or None: the next record to be appended. Blocks only for the disk,
        without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: an
        invalid `start`; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def batches(self, start: _From = None, *, follow: bool = False) -> Stream[Batch]:
        """Reads in batches from `start` on. Returns a `Stream` of `Batch`.

        `start`: an index from 1, a `Start`, or None: the first record. `follow`: whether it waits at the end for
        new records; if not, it ends there. Blocks only for the disk, without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: an
        invalid `start`; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def status(self) -> Status:
        """Returns `Status`: the state of the log, as far as it is proven durable.

        Does not block. Raises `ClosedError`."""
    def unproven(self) -> int:
        """Returns how many records follow the last visible one that are not proven durable.

        Does not block. Raises `ClosedError`."""
    def members(self) -> list[Member] | None:
        """Returns the members of the cluster that these files name, a list of `Member`; None: there is no cluster.

        Does not block. Raises `ClosedError`."""
    def log_options(self) -> dict[str, int]:
        """Returns the options that are set for the log, a dict of names and values, as `Log.log_options` does.

        Does not block. Raises `ClosedError`."""
    def failure(self) -> Error | None:
        """Returns why the view stopped, an `Error`, if it met damage; None: it continues.

        Does not block. Raises `ClosedError`."""
    def close(self) -> None:
        """Closes the read-only log. Returns None. Any thread may call it, more than once.

        Does not block. Readers continue to the end of the visible records; calls that wait there raise
        `ClosedError`."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> Coroutine[Any, Any, Self]: ...
    def __aexit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Coroutine[Any, Any, None]: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Client:
    """A log over the network: finds the leader and follows its changes.

    `Client(servers, options=None)` connects to the cluster that `servers`, an iterable of "host:port", belong to:
    one that answers is enough. `options`: `ClientOptions`, None: the defaults. Blocks for up to
    `ClientOptions.timeout` seconds, without the GIL; Ctrl-C ends the wait. After a second it logs a warning with the
    reason.

    Raises `TimeoutError`, `UnavailableError`: none answered in time; `UnauthenticatedError`,
    `PermissionDeniedError`: the token; `NotFoundError`: they have no log of that name; `UnsupportedError`: they run
    an incompatible version; `InvalidArgumentError`, `TypeError`: no address, an option, or servers of different
    logs.

    Any number of threads may use it. In a forked child each call raises `ForkedError`. `with` and `async with`
    close it.
    Each call can take `ClientOptions.timeout` seconds with all its attempts."""

    def __new__(cls, servers: Iterable[str], options: ClientOptions | None = None) -> Self: ...
    @staticmethod
    def connect_async(servers: Iterable[str], options: ClientOptions | None = None) -> Pending[Client]:
        """Connects. When awaited, gives the `Client`.

        `servers` and `options` are those of `Client`, and so is what it raises. Does not block. `RuntimeError`: no
        event loop runs on this thread."""
    def producer(self, options: ProducerOptions | None = None) -> Producer:
        """Opens a producer: it collects records and appends them, by default exactly once. Returns a `Producer`.

        `options`: `ProducerOptions`, None: the defaults. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`, `UnavailableError`: no answer within `ClientOptions.timeout` seconds;
        `UnauthenticatedError`, `PermissionDeniedError`: the token; `ClosedError`; `InvalidArgumentError`,
        `TypeError`: an option."""
    def producer_async(self, options: ProducerOptions | None = None) -> Pending[Producer]:
        """Opens a producer. When awaited, gives the `Producer`.

        `options` are those of `producer`, and so is what it raises. Does not block. `RuntimeError`: no event loop
        runs on this thread."""
    def reader(
        self, start: _From = None, options: ReaderOptions | None = None, *, follow: bool = True
    ) -> Reader:
        """Reads from `start` on, and waits at the end for new records unless `follow` is False. Returns a `Reader`.

        `start`: an index from 1, a `Start`, or None: the first record. `options`: `ReaderOptions`, None: the
        defaults. Does not block: it connects at the first read, which raises errors about `start`.

        Raises `InvalidArgumentError`, `TypeError`: an argument or an option; `ClosedError`."""
    def read(self, start: _From = None, options: ReaderOptions | None = None) -> Reader:
        """Reads from `start` on. Returns a `Reader` that ends at the end of the log.

        `start`: an index from 1, a `Start`, or None: the first record. `options`: `ReaderOptions`, None: the
        defaults. Does not block. Raises what `reader` does."""
    def tail(self, start: _From = None, options: ReaderOptions | None = None) -> Reader:
        """Reads from `start` on, and waits at the end for new records. Returns a `Reader`.

        Without `start` it begins at the end: existing records are not read. `Reader.start` is the index of its
        first record.

        `start`: an index from 1, a `Start`, or None: the next record to be appended, as of the first read.
        `options`: `ReaderOptions`, None: the defaults. Does not block. Raises what `reader` does."""
    def batches(
        self, start: _From = None, options: ReaderOptions | None = None, *, follow: bool = False
    ) -> Stream[Batch]:
        """Reads in batches from `start` on. Returns a `Stream` of `Batch`.

        `start`: an index from 1, a `Start`, or None: the first record. `options`: `ReaderOptions`, None: the
        defaults. `follow`: whether it waits at the end for new records; if not, it ends there. Does not block.
        Raises what `reader` does."""
    def info(self, *, stale: bool = False) -> RemoteInfo:
        """Returns `RemoteInfo`: the state of the log, including everything that was acknowledged before the call.

        `stale`: as any replica knows it, without a majority. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`, `UnavailableError`: no answer within `ClientOptions.timeout` seconds;
        `UnauthenticatedError`, `PermissionDeniedError`: the token; `ClosedError`."""
    def info_async(self, *, stale: bool = False) -> Pending[RemoteInfo]:
        """`info`, to be awaited: gives `RemoteInfo`.

        `stale` is that of `info`, and so is what it raises. Does not block. `RuntimeError`: no event loop runs on this
        thread."""
    def discard(self, first: int) -> None:
        """Discards all records below `first`, an index from 1. Returns None.

        A `first` beyond the end moves the log's indexes forward for good: the log is empty then, and the next
        record gets the index `first`. `info().last + 1` empties the log without skipping an index. Blocks, without
        the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`, `UnavailableError`: no answer within `ClientOptions.timeout` seconds;
        `UnauthenticatedError`, `PermissionDeniedError`: the token; `ClosedError`; `InvalidArgumentError`,
        `TypeError`: `first`. Repeating the call does no harm."""
    def discard_async(self, first: int) -> Pending[None]:
        """`discard`, to be awaited: gives None once all records below `first`, an index from 1, are discarded.

        Raises what `discard` does. Does not block. `RuntimeError`: no event loop runs on this thread."""
    def of_log(self, name: str) -> Client:
        """Connects to another log of the same servers, with the same options. Returns a `Client`.

        `name`: the log's name, "": the log "default". Such clients share one connection to each server for calls, and
        those for appends. A reader has one of its own. A producer that shares a connection ends its stream when it was
        idle for a second, and opens another one for its next record. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `NotFoundError`: no log of that name; `TimeoutError`, `UnavailableError`, `UnauthenticatedError`,
        `PermissionDeniedError`, `ClosedError`."""
    def of_log_async(self, name: str) -> Pending[Client]:
        """Connects to another log of the same servers. When awaited, gives the `Client`.

        `name` is that of `of_log`, and so is what it raises. Does not block. `RuntimeError`: no event loop runs on this
        thread."""
    def create_log(self, name: str, *, beside: str | None = None) -> NamedLog:
        """Creates a named log on the servers. Returns `NamedLog` once it can be appended to.

        `of_log(name)` then connects to it. `name` is 1 to 249 of the characters
        `A-Z a-z 0-9 . _ -`, does not begin with `_`, and can end with `/` and a partition's number. `beside`: a log in
        whose group it is created. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `AlreadyExistsError`, also if the answer to a first attempt was lost; `InvalidArgumentError`: the name;
        `NotFoundError`: `beside`; `FullError`; `UnsupportedError`: the servers keep no named logs; `TimeoutError`,
        `UnavailableError`, `UnauthenticatedError`, `PermissionDeniedError`, `ClosedError`."""
    @staticmethod
    def append_together(appends: Iterable[tuple[Client, Iterable[Buffer]]], codec: _Codec = "none") -> _Ranges:
        """Appends a batch to each of several named logs of servers, all or none. Returns a list of ranges.

        No crash and no copy of the group separates them; readers of two of the logs can see one a moment before the
        other. `appends`: an iterable of up to 256 pairs, a `Client` of a log (see `of_log`) and an iterable of records,
        bytes or objects with a buffer, at least one; a log may occur more than once. The logs are of one group of the
        same servers (see `create_log`). `codec`: the compression, "none", "lz4" or "zstd". The ranges are those of the
        records' indexes, in the order of `appends`. The batches are appended at most once: an attempt without an
        outcome is not repeated. Blocks for up to `ClientOptions.timeout` or `attempt_timeout` seconds of the first
        client, the longer one, without the GIL; Ctrl-C ends the wait.

        Raises `UnavailableError`, `TimeoutError`: the batches MAY BE IN THE LOGS: if you append them again, they can be
        there twice. Wait some seconds, because a server can still have the request, and read the ends of the logs: all
        are there, or none. The same holds after Ctrl-C and `ClosedError` during the call. `NotFoundError`, `SealedError`:
        one of the logs takes no appends; `NotLeaderError`: no leader of the group answered in time; `BusyError`,
        `FullError`, `TooLargeError`, `UnsupportedError` (the leader runs an earlier version), `TypeError`,
        `UnauthenticatedError`, `PermissionDeniedError`, `InvalidArgumentError` (an argument, or logs of different
        groups): nothing was appended to any of them."""
    @staticmethod
    def append_together_async(
        appends: Iterable[tuple[Client, Iterable[Buffer]]], codec: _Codec = "none"
    ) -> Pending[_Ranges]:
        """`append_together`, to be awaited: gives the list of ranges once all records are stored.

        `appends`, `codec`: as for `append_together`, of at least one pair. Does not block, except for compression, without
        the GIL. A cancelled task does not know whether the records are appended.

        Raises what `append_together` does. `RuntimeError`: no event loop runs on this thread; then nothing is appended."""
    def delete_log(self, name: str) -> None:
        """Deletes a named log of the servers with all its records. Returns None.

        `name`: the log's name. Its producers and readers get `NotFoundError`. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `NotFoundError`, also if the answer to a first attempt was lost; otherwise what `create_log` does."""
    def seal_log(self, name: str) -> None:
        """Seals a named log of the servers: it takes no more appends, its records stay. Returns None.

        `name`: the log's name. Blocks, without the GIL; Ctrl-C ends the wait. Repeating the call does no harm.

        Raises `NotFoundError`; otherwise what `create_log` does."""
    def list_logs(self, prefix: str = "") -> list[NamedLog]:
        """Returns a list of `NamedLog`, by name: the named logs of the servers whose names begin with `prefix`.

        Blocks, without the GIL; Ctrl-C ends the wait. Raises what `create_log` does."""
    def log_options(self) -> dict[str, int]:
        """Returns the options that are set for the log, a dict of names and values, as its leader knows them.

        Names and units: see `Log.set_log_options`. For an option that is not in it the leader's own applies. Blocks,
        without the GIL; Ctrl-C ends the wait.

        Raises `UnsupportedError`: the log has an option that this version does not know; otherwise what `info` does."""
    def set_log_options(self, changes: Mapping[str, int | None], timeout: float = 10.0) -> None:
        """Sets options of the log, all changes at once or none, and waits until that is committed. Returns None.

        `changes`: a mapping of names to values, as for `Log.set_log_options`; a value of None unsets the option.
        Options that are not named do not change. A limit of retention below what the log holds discards records at
        once, for good. A named log has options of its own, see `Log.set_log_options`;
        the others are set by a client of its group: `ClientOptions(log="_group-1")` and so on. `timeout`: seconds,
        from 0, up to 600: how long the leader waits for members that have not yet confirmed that they support
        options of the log. Blocks for up to 5 seconds more, or for `ClientOptions.timeout` if that is longer, without
        the GIL; Ctrl-C ends the wait.

        Raises `InvalidArgumentError`, `TypeError`: an option or its value; `UnsupportedError`: a member runs an
        earlier version; `NotFoundError`: the log was deleted; `UnauthenticatedError`, `PermissionDeniedError`: the
        token, which needs the role `admin`; `FullError`, `BusyError`; `ClosedError`: nothing was changed.
        `TimeoutError`, `UnavailableError`: the change may or may not take effect. Repeating the call does no harm."""
    def open_session(self) -> int:
        """Opens a session, for a producer that continues in it after a restart. Returns its id.

        Pass `ProducerOptions(session=(id, 1))` first. After a restart pass the number of the first batch that is
        not known to be in the log. A session that is not used for long expires. Blocks, without the GIL; Ctrl-C
        ends the wait.

        Raises `TooManySessionsError`; `TimeoutError`, `UnavailableError`: no answer within `ClientOptions.timeout`
        seconds; `UnauthenticatedError`, `PermissionDeniedError`: the token; `ClosedError`."""
    def watch(self, interval: float = 0.1) -> Watch:
        """Watches the state of the log and its changes. Returns a `Watch`, an iterator of `RemoteInfo`.

        `interval`: seconds, from 0: the shortest time between two changes. Does not block.

        Raises `InvalidArgumentError`, `TypeError`: `interval`; `ClosedError`."""
    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that the servers accept, in bytes, as last reported by them. Raises `ClosedError`."""
    def close(self) -> None:
        """Closes the client and its watches: calls that wait with them raise `ClosedError`. Returns None.

        Producers and readers continue until they are closed themselves. Does not block. Any thread may call it,
        more than once."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> Coroutine[Any, Any, Self]: ...
    def __aexit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Coroutine[Any, Any, None]: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Watch:
    """The state of a log, now and after each change: an iterator of `RemoteInfo`, also for `async for`.

    Made by `Client.watch`. It never ends by itself; once the watch or its client is closed it raises `ClosedError`.
    Any thread may use it, one at a time. `with` and `async with` close it."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> RemoteInfo: ...
    def next(self, timeout: float | None = None) -> RemoteInfo:
        """Returns `RemoteInfo`: at once the first time, then after a change.

        `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`: nothing changed in time; `UnavailableError`: no server could be reached;
        `UnauthenticatedError`, `PermissionDeniedError`: the token; `ClosedError`; `InvalidArgumentError`,
        `TypeError`: `timeout`."""
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, RemoteInfo]: ...
    def close(self) -> None:
        """Closes the watch; calls that wait with it raise `ClosedError`. Returns None.

        Does not block. Any thread may call it, more than once."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> Coroutine[Any, Any, Self]: ...
    def __aexit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Coroutine[Any, Any, None]: ...

@final
class Producer:
    """Appends records to servers: collects them into batches, and sends again after a failure. Made by
    `Client.producer`.

    The producer sends a record again by itself until it is acknowledged or `ProducerOptions.delivery_timeout` has
    passed. With `exactly_once`, the default, it is stored once. If the program sends it again, that is another
    record: after a `TimeoutError`, `UnavailableError` or `ClosedError` the first may be in the log, and both can
    end up there. To send a record again safely, also after a restart, use `ProducerOptions.session` and
    `submit_batch`.

    Any number of threads may use it. In a forked child each call raises `ForkedError`. The end of a `with` or
    `async with` closes it, waits up to 30 seconds, and raises the reason if a record is not in the log, as `close`
    does. If an exception ends the block, a note on the exception and a `ResourceWarning` report how many records
    are not.

    A producer that is dropped without being closed, with records in flight, sends them in the background and issues
    a `ResourceWarning` with their number. When the program ends, records in flight are sent for up to
    `ProducerOptions.exit_timeout` seconds. The number of those not acknowledged by then is written to stderr. A
    process that is killed, or ends by `os._exit`, reports nothing."""

    def send(self, record: Buffer) -> None:
        """Buffers a record. Returns None. `flush` and `close` report whether it is in the log.

        `record`: bytes or an object with a buffer, up to the limit of the servers. Blocks while there is no space,
        for up to `ProducerOptions.block_max` seconds, without the GIL; Ctrl-C ends the wait.

        Raises `BusyError` (no space in that time), `TooLargeError`, `ClosedError`, `TypeError`, or the error that
        ended the producer: the record was not accepted."""
    def try_send(self, record: Buffer) -> None:
        """As `send`, with `record`, but raises `BusyError` if there is no space.

        Does not block. Raises what `send` does: the record was not accepted."""
    def append(self, record: Buffer, timeout: float | None = None) -> int:
        """Appends a record and waits until it is in the log. Returns its index, from 1.

        `record`: bytes or an object with a buffer, up to the limit of the servers. `timeout`: seconds, from 0;
        None: no limit. Waits for space for up to `ProducerOptions.block_max` seconds, and for the record for up to
        `ProducerOptions.delivery_timeout`. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`, `UnavailableError`, `ClosedError`: the record MAY STILL BE APPENDED (after this
        `timeout`, or Ctrl-C, the producer continues to send it); if you append it again, it can be there twice.
        `SequenceForgottenError`: it IS in the log. `BusyError`, `FullError`, `TooManySessionsError`,
        `TooLargeError`, `TypeError`, `InvalidArgumentError` (an argument): it is certainly not in the log."""
    def submit(self, record: Buffer) -> Ticket:
        """Buffers a record. Returns a `Ticket` for its index.

        `record`: bytes or an object with a buffer, up to the limit of the servers. Blocks while there is no space,
        for up to `ProducerOptions.block_max` seconds, without the GIL; Ctrl-C ends the wait.

        Raises what `send` does: the record was not accepted. The ticket can raise the other errors of `append`."""
    def try_submit(self, record: Buffer) -> Ticket:
        """As `submit`, with `record`, but raises `BusyError` if there is no space.

        Does not block. Raises what `send` does: the record was not accepted."""
    def submit_batch(self, records: Iterable[Buffer]) -> Ticket:
        """Buffers records as one batch, all or none. Returns a `Ticket` for the index of the first.

        `records`: an iterable of bytes or objects with a buffer, at least one, together up to
        `ProducerOptions.batch_bytes` bytes and the limit of the servers. Blocks as `submit` does.

        Raises what `send` does, and `InvalidArgumentError`: there are no records. None of them was accepted."""
    def append_async(self, record: Buffer) -> Pending[int]:
        """Appends a record. When awaited, gives its index, from 1, once it is in the log.

        `record`: bytes or an object with a buffer, up to the limit of the servers. Does not block: it waits for
        space for up to `ProducerOptions.block_max` seconds when awaited. A cancelled task does not know whether the
        record is appended.

        Raises what `append` does: after `TimeoutError` or `ClosedError` the record MAY BE in the log.
        `RuntimeError`: no event loop runs on this thread; then nothing is appended."""
    @property
    def unacknowledged(self) -> int:
        """The number of records without acknowledgement, and of those whose failure was not reported, even if a ticket
        could report it. 0: all records are in the log."""
    def flush(self, timeout: float = 30.0) -> None:
        """Waits until all records sent before the call have an outcome. Returns None. Any thread may call it.

        `timeout`: seconds, from 0. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises the reason why a record failed since the last flush; `TimeoutError`: some have no outcome in time,
        and the producer continues to send them; `InvalidArgumentError`, `TypeError`: `timeout`."""
    def flush_async(self, timeout: float = 30.0) -> Pending[None]:
        """`flush`, to be awaited: gives None once all records sent before the call have an outcome.

        `timeout`: seconds, from 0. Does not block. Raises what `flush` does; `RuntimeError`: no event loop runs on this
        thread."""
    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that were sent and have no outcome yet."""
    def close(self, timeout: float = 30.0) -> Closed:
        """Accepts no more records, and waits until all are in the log. Returns `Closed`, with no records left.

        `timeout`: seconds, from 0: after that the producer ends, and the records that are left are reported.
        Blocks, without the GIL; Ctrl-C ends the wait. Any thread may call it, more than once: each call reports the
        same records.

        Raises the reason why records are not in the log, those that are left or failed since the last `flush`:
        `TimeoutError`, `UnavailableError`, `FullError` or the error that ended the producer. Its attribute
        `closed`, a `Closed`, has the records that are left. `InvalidArgumentError`, `TypeError`: `timeout`."""
    def close_async(self, timeout: float = 30.0) -> Pending[Closed]:
        """`close`, to be awaited: gives `Closed`, which then has no records left.

        `timeout`: seconds, from 0. Does not block. Raises what `close` does; `RuntimeError`: no event loop runs on this
        thread."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> Coroutine[Any, Any, Self]: ...
    def __aexit__(
        self, kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Coroutine[Any, Any, None]: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Follower:
    """A copy of a log in this process, kept up to date from any server of its cluster.

    `Follower(dir, cluster, start=None, options=None)` opens the copy in `dir`, a str or path, or creates one there.
    `cluster`: an iterable of servers, "host:port"; one that runs is enough. `start`, where a new copy begins: an
    index from 1, a `Start`, None: the first record. `options`: `FollowerOptions`, None: the defaults. A new copy
    waits for a server, for up to `FollowerOptions.open_timeout` seconds. Blocks, without the GIL; Ctrl-C ends the
    wait.

    Raises `TimeoutError`, `UnavailableError`, `UnauthenticatedError`, `PermissionDeniedError`: no server could be
    used; `OutOfRangeError`, `DiscardedError`: there is no such record; `LockedError`, `CorruptError`,
    `UnsupportedError`, `IoError`: the files; `InvalidArgumentError`, `TypeError`: an argument or an option.

    Any number of threads may use it. In a forked child each call raises `ForkedError`. `with` and `async with`
    close it.
    After `close()` calls raise `ClosedError`, except for `close`, `path`, `options`, `poison_cause`, `status` and
    the remaining events; readers continue to the end of the copy."""

    def __new__(
        cls, dir: _Dir, cluster: Iterable[str], start: _From = None, options: FollowerOptions | None = None
    ) -> Self: ...
    @staticmethod
    def open_async(
        dir: _Dir, cluster: Iterable[str], start: _From = None, options: FollowerOptions | None = None
    ) -> Pending[Follower]:
        """Opens a follower. When awaited, gives the `Follower`.

        `dir`, `cluster`, `start`, `options` are those of `Follower`, and so is what it raises. Does not block. If
        it is cancelled, opening continues, and the follower is closed once it is open. `RuntimeError`: no event
        loop runs on this thread."""
    def get(self, index: int) -> Record:
        """Returns the `Record` at `index`, from 1.

        Blocks only for the disk, without the GIL. Raises `OutOfRangeError`: the record does not exist yet;
        `DiscardedError`: it was discarded; `InvalidArgumentError`, `TypeError`: `index`; `CorruptError`, `IoError`:
        the files; `ClosedError`."""
    def read(self, start: _From = None) -> Reader:
        """Reads the copy from `start` on. Returns a `Reader` that ends at the end of the copy.

        `start`: an index from 1, a `Start`, or None: the first record. Blocks only for the disk, without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: an
        invalid `start`; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def tail(self, start: _From = None) -> Reader:
        """Reads the copy from `start` on, and waits at the end for new records. Returns a `Reader`.

        Without `start` it begins at the end: existing records are not read. `Reader.start` is the index of its
        first record.

        `start`: an index from 1, a `Start`, or None: the next record to be received. Blocks only for the disk,
        without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: an
        invalid `start`; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def batches(self, start: _From = None, *, follow: bool = False) -> Stream[Batch]:
        """Reads the copy in batches from `start` on. Returns a `Stream` of `Batch`.

        `start`: an index from 1, a `Start`, or None: the first record. `follow`: whether it waits at the end for
        new records; if not, it ends there. Blocks only for the disk, without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: an
        invalid `start`; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def wait_for(self, index: int, timeout: float | None = None) -> None:
        """Waits until record `index`, from 0, is here or is discarded. Returns None.

        `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`: not in time; `ClosedError`, or the error that ended the follower: the record will not
        arrive; `InvalidArgumentError`, `TypeError`: an argument."""
    def wait_for_async(self, index: int) -> Pending[None]:
        """`wait_for`, to be awaited: gives None once record `index`, from 0, is here or is discarded.

        Does not block. To limit the wait, cancel it or use `asyncio.timeout`.

        Raises `ClosedError`, or the error that ended the follower: the record will not arrive;
        `InvalidArgumentError`, `TypeError`: `index`; `RuntimeError`: no event loop runs on this thread."""
    def log_status(self) -> Status:
        """Returns `Status`: the state of the copy, as a log.

        Does not block. Raises `ClosedError`."""
    def status(self) -> FollowerStatus:
        """Returns `FollowerStatus`: the state of the follower. Also after `close()`.

        Does not block."""
    def next_event(self, timeout: float | None = None) -> FollowerEvent:
        """Returns the next `FollowerEvent`, and waits for one. Each is returned once; the newest 1,024 are kept.

        `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait. Any thread may
        call it.

        Raises `TimeoutError`: no event in time; `ClosedError`: there will be no more events;
        `InvalidArgumentError`, `TypeError`: `timeout`."""
    def next_event_async(self) -> Pending[FollowerEvent]:
        """`next_event`, to be awaited: gives the next `FollowerEvent`. One task at a time.

        Does not block. A cancelled task has taken no event. Raises `ClosedError`: there will be no more events;
        `RuntimeError`: another task waits, or no event loop runs on this thread."""
    def metrics(self) -> Metrics:
        """Returns `Metrics`: the copy's counters since it was opened, and the work that waits in it now.

        Does not block. Raises `ClosedError`."""
    def poison_cause(self) -> Error | None:
        """Returns why the copy accepts no more records, the `Error` of a failed write or sync; None: it continues.

        Does not block. Also after `close()`."""
    @property
    def options(self) -> Options:
        """The `Options` of the copy's files that are in force, each with its value.

        The given options, the defaults, and limits lowered to fit the segment size. Also after `close()`."""
    @property
    def path(self) -> Path:
        """The directory, a `pathlib.Path`. Also after `close()`."""
    def close(self) -> None:
        """Stops following. Returns None. Any thread may call it, more than once.

        Blocks until the received records are durable and the directory is unlocked, without the GIL; it waits for
        no server. Ctrl-C ends the wait, and closing continues. Readers continue to the end of the copy; calls that
        wait there, in `wait_for` or in `next_event`, raise `ClosedError`.

        Raises `PoisonedError`: an earlier write failed."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> Coroutine[Any, Any, Self]: ...
    def __aexit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Coroutine[Any, Any, None]: ...
    def __reduce__(self) -> NoReturn: ...

@final
class _Completions:
    def __new__(cls) -> Self: ...
    def fileno(self) -> int: ...
    def drain(self) -> None: ...

def _end() -> None: ...
def _error_kinds() -> list[tuple[str, int, bool, bool]]: ...
