from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, NoReturn, SupportsIndex, TypeAlias, TypeVar, final
from typing_extensions import Buffer, Self

from ._aio import Pending
from ._options import ClientOptions, FollowerOptions, Options, ProducerOptions, ReaderOptions, Start
from ._values import Backlog, Closed, FollowerEvent, FollowerStatus, Info, Member, RemoteInfo, Stats
from ._errors import Error

__all__ = [
    "Batch",
    "Record",
    "Client",
    "Watch",
    "_Courier",
    "_end",
    "_error_kinds",
    "logging_changed",
    "Follower",
    "Log",
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
_From: TypeAlias = int | Start | None

@final
class Record(Buffer):
    """A record: its place, its time, and a view of its bytes. Holds its segment of the log.

    `len(record)`, `bytes(record)`, `memoryview(record)`, and whatever else takes a buffer, as `pickle.loads(record)`; where
    text or bytes are wanted, `json.loads(record.decode())`. Never changes; from any thread."""

    @property
    def index(self) -> int:
        """Its place in the log, from 1."""
    @property
    def timestamp(self) -> int:
        """When the log took it, in milliseconds since 1970."""
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

    `len(batch)`, `batch[n]` (from 0; `IndexError`), iteration. Never changes; from any thread. It exports Arrow's
    PyCapsules."""

    @property
    def first(self) -> int:
        """Index of the first record, from 1."""
    @property
    def last(self) -> int:
        """Index of the last record."""
    @property
    def timestamp(self) -> int:
        """When the log took them, in milliseconds since 1970."""
    @property
    def data(self) -> memoryview:
        """The bytes of all records, one after the other: a read-only view, no copy. It holds the segment until it is dropped."""
    @property
    def offsets(self) -> memoryview:
        """Where records begin and end in `data`: a read-only view of 32-bit integers, one more than there are records."""
    def views(self) -> list[memoryview]:
        """Returns read-only views of all records' bytes, a list of memoryview. Each holds the segment.

        Does not block."""
    def copies(self) -> list[bytes]:
        """Returns copies of all records' bytes, a list of bytes, which hold nothing.

        Does not block; copies above 64 KiB are made without the GIL."""
    def to_numpy(self) -> tuple[Any, Any]:
        """Returns bytes and offsets as numpy arrays, of uint8 and int32, over the same memory.

        Does not block. Raises `ImportError`: numpy is not installed."""
    def to_arrow(self) -> Any:
        """Returns the records as an Arrow array of binary values over the same memory. Other libraries take the batch itself.

        Does not block. Raises `ImportError`: pyarrow is not installed."""
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: SupportsIndex, /) -> Record: ...
    def __iter__(self) -> Iterator[Record]: ...

@final
class Reader:
    """Records in order, from a log, a copy of one, or servers: an iterator of `Record`, also for `async for`.

    Made by `read`, `tail` and `reader` of a handle, which it keeps open until it is closed or dropped. Each step blocks
    for the disk or the network, and where the reader follows for the next record, without the GIL; Ctrl-C ends the
    wait. Threads may share it: each record is given to one of them. Of tasks of asyncio, one at a time waits; who is
    cancelled has taken nothing.

    Of files here, what is read on and on is read ahead on another thread: at most 9 MiB and a batch. What is ahead holds its
    segments, and is given also if it is discarded meanwhile.

    A step raises `DiscardedError`: the next record was discarded meanwhile; `OutOfRangeError`: there is no such record;
    `CorruptError`, `IoError`: the files; `UndecodableError`: a batch that was appended so (`skip_batch`); `TimeoutError`, `UnavailableError`, `UnauthenticatedError`,
    `PermissionDeniedError`: the servers; `ClosedError`: the reader was closed, or the end came of a log that was;
    `ForkedError`: in a forked child. `with` and `async with` close it."""

    @property
    def start(self) -> int | None:
        """Index of the record that it began with, from 1, also once it has gone on; None: no server has settled it yet.

        Of `tail()` the one that came next when it was made. It may not be there yet."""
    @property
    def position(self) -> int | None:
        """Index of the record that comes next, from 1; None: no server has settled it yet."""
    @property
    def server(self) -> str | None:
        """Which server it reads from, "host:port"; None: none now, files here, or somebody waits for a record just now."""
    def views(self) -> Stream[memoryview]:
        """Goes on with read-only views of the records' bytes. Returns a `Stream` of memoryview.

        Each view holds its segment of the log. The stream shares this reader's place. Does not block."""
    def copies(self) -> Stream[bytes]:
        """Goes on with copies of the records' bytes, which hold nothing. Returns a `Stream` of bytes.

        The stream shares this reader's place. Does not block."""
    def batches(self) -> Stream[Batch]:
        """Goes on with batches. Returns a `Stream` of `Batch`.

        The stream shares this reader's place; the first batch is what is left of the one in hand. Does not block."""
    def seek(self, index: int) -> None:
        """Goes on at the record `index`, from 1, which may be the next one to come. Returns None.

        Blocks while another thread waits for a record, without the GIL; Ctrl-C ends the wait.

        Raises, of files here, `OutOfRangeError`, `DiscardedError`: there is no such record (of servers the next step does);
        `InvalidArgumentError`, `TypeError`: `index`; `ClosedError`, `ForkedError`."""
    def skip_batch(self) -> int | None:
        """Goes on behind a batch for which the last step raised `UndecodableError`.

        Where the last step did something else, nothing changes. Returns the index of the record that comes next; None: a
        reader over the network that has not begun.

        Does not block. Raises `ClosedError` when the reader is closed."""
    def wait(self, timeout: float | None = None) -> bool:
        """Waits until there is a record to read. Returns True; False: not in time, or at the end where it does not follow.

        `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises what a step of the reader does; `InvalidArgumentError`, `TypeError`: `timeout`."""
    def close(self) -> None:
        """Ends reading; whoever waits is woken with `ClosedError`. Returns None. Lets go of what it reads from.

        Does not block. From any thread, and more than once."""
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

    It exports Arrow's PyCapsules, as its `Reader` does: `pyarrow.table(log.batches())`, and whatever else takes them, reads
    it to the end, as tables of `index` (uint64), `time` (timestamp[ms, UTC]) and `data` (binary), one for each batch of the
    log, over its own bytes; batches below 64 KiB that are there are copied together, into tables of about 1 MiB. One that follows has no end: take it batch by batch, as with
    `pyarrow.RecordBatchReader.from_stream`. What goes wrong, and a Ctrl-C, is raised as the consumer's own error, with the
    text: of pyarrow an `OSError`."""

    @property
    def reader(self) -> Reader:
        """The `Reader` it reads from, with its position."""
    def close(self) -> None:
        """Closes its reader; whoever waits is woken with `ClosedError`. Returns None.

        Does not block. From any thread, and more than once."""
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
    """An append that is under way: tells the index of its first record, to as many as ask, also by `await`.

    Made by `submit` and its like. From any thread. `await ticket` gives the index, and raises what `wait` does; who is
    cancelled leaves the append alone. A producer's record that fails, and whose ticket is neither waited for nor awaited,
    counts as one that nobody was told of: `flush` and `close` of the producer, or the end of the program, tell of it."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits until the append is in the log. Returns the index of its first record, from 1.

        `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait. The append goes on, and
        can be waited for again.

        Raises `TimeoutError`, `UnavailableError`, `PoisonedError`, `ClosedError`: the append MAY STILL COME ABOUT, or be in
        the log: appended again it can be there twice. `SequenceForgottenError`: it IS in the log. `FullError`, `BusyError`,
        `TooLargeError`, `TooManySessionsError`, `SessionExpiredError`, `SequenceGapError`: it is surely not.
        `InvalidArgumentError`, `TypeError`: `timeout`."""
    def done(self) -> bool:
        """Returns whether it is settled, well or not. Which of the two, `wait` tells.

        Does not block."""
    def add_done_callback(self, fn: Callable[[Ticket], object]) -> None:
        """Calls `fn(ticket)` once it is settled, well or not. Returns None.

        At once on this thread if it is settled already, else on a thread of the package's own, one for all callbacks of the
        process, which calls them one after the other. A callback may append and wait; one that takes long holds up other
        callbacks, never the log. `close()` of the log settles its tickets; their callbacks may still be running when it
        returns. What a callback raises goes to `sys.unraisablehook`. At the end of the program those that are due are
        called, and no others. A forked child calls none of its parent's.

        Does not block, except for what `fn` does. Raises `TypeError`: `fn` is not to be called."""
    def __await__(self) -> Generator[Any, None, int]: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Log:
    """A durable log in a directory: the one handle that appends to it.

    `Log(dir, options=None)` opens the log in `dir`, a str or path, or makes one there. `options`: `Options`, None: the
    defaults. Blocks until its files are recovered, without the GIL; Ctrl-C ends the wait, and what is opened then is
    closed.

    Raises `LockedError`: another handle or process has it open; `NotFoundError`: there is none, and `create` is False;
    `CorruptError`, `UnsupportedError`, `IoError`: the files; `InvalidArgumentError`, `TypeError`: an option.

    To be used from any number of threads; in a forked child every call raises `ForkedError`. `with` and `async with`
    close it. After `close()` calls raise `ClosedError`, except for `close`, `path`, `options` and `poison_cause`; readers
    go on to the end."""

    def __new__(cls, dir: _Dir, options: Options | None = None) -> Self: ...
    def append(self, record: Buffer, timeout: float | None = None) -> int:
        """Appends a record and waits until it is on stable storage. Returns its index, from 1.

        `record`: bytes or anything with a buffer, up to `options.record_bytes_max` bytes. `timeout`: seconds, from 0; None:
        no limit. Room in the queue is waited for at most `options.queue_timeout` seconds, too. Blocks, without the GIL;
        Ctrl-C ends the wait.

        Raises `TimeoutError`, `UnavailableError`, `PoisonedError`: the record MAY STILL BE APPENDED, or be in the log:
        appended again it can be there twice, unless it is in a session. So it is after Ctrl-C. `BusyError` (no room in the
        queue in time), `FullError`, `TooLargeError`, `ClosedError`, `TypeError`, `InvalidArgumentError` (an argument): it
        is surely not."""
    def append_batch(
        self, records: Iterable[Buffer], codec: _Codec = "none", timeout: float | None = None
    ) -> range:
        """Appends records as one batch, all or none, and waits for stable storage. Returns the range of their indexes.

        `records`: an iterable of bytes or whatever has a buffer, at least one, together up to `options.batch_bytes_max`
        bytes. `codec`, how they are stored: "none", "lz4" or "zstd". `timeout`: seconds, from 0; None: no limit. Blocks,
        without the GIL; Ctrl-C ends the wait.

        Raises what `append` does: after `TimeoutError`, `UnavailableError`, `PoisonedError` and Ctrl-C the records MAY
        STILL BE APPENDED, and appended again they can be there twice. `InvalidArgumentError` also where there are no
        records."""
    def submit(self, record: Buffer) -> Ticket:
        """Begins to append a record. Returns a `Ticket` that tells its index.

        `record`: bytes or anything with a buffer, up to `options.record_bytes_max` bytes. Blocks only while the queue is
        full, at most `options.queue_timeout` seconds, without the GIL; Ctrl-C ends the wait.

        Raises `BusyError` (no room in that time), `FullError`, `TooLargeError`, `PoisonedError`, `ClosedError`,
        `TypeError`: the record was not taken."""
    def submit_batch(self, records: Iterable[Buffer], codec: _Codec = "none") -> Ticket:
        """Begins to append records as one batch, all or none. Returns a `Ticket` that tells the index of the first.

        `records`: an iterable of bytes or whatever has a buffer, at least one, together up to `options.batch_bytes_max`
        bytes. `codec`, how they are stored: "none", "lz4" or "zstd". Blocks only while the queue is full, at most
        `options.queue_timeout` seconds, without the GIL; Ctrl-C ends the wait.

        Raises what `submit` does, and `InvalidArgumentError`: no records, or no codec. None of them was taken."""
    def try_submit(self, record: Buffer) -> Ticket:
        """As `submit`, with `record`, but raises `BusyError` where the queue is full.

        Does not block. Raises what `submit` does: the record was not taken."""
    def try_submit_batch(self, records: Iterable[Buffer], codec: _Codec = "none") -> Ticket:
        """As `submit_batch`, with `records` and `codec`, but raises `BusyError` where the queue is full.

        Does not block, except for the packing, without the GIL. Raises what `submit_batch` does: none of them was taken."""
    def check_room(self, bytes: int) -> None:
        """Looks whether the capacity has room for an append of `bytes` bytes, besides all that waits. Returns None.

        Does not block. Raises `FullError`: it has not; `PoisonedError`, `ClosedError`; `InvalidArgumentError`, `TypeError`:
        `bytes`."""
    def append_async(self, record: Buffer) -> Pending[int]:
        """Appends a record; what is awaited gives its index, from 1, once it is on stable storage.

        `record`: bytes or anything with a buffer, up to `options.record_bytes_max` bytes. Does not block: it is begun at
        once, and room in the queue is awaited for as long as it takes. Who is cancelled does not know whether it is
        appended.

        Raises what `append` does, but never `BusyError` or `TimeoutError`. `RuntimeError`: no event loop runs on this
        thread; then nothing is appended."""
    def append_batch_async(self, records: Iterable[Buffer], codec: _Codec = "none") -> Pending[int]:
        """Appends records as one batch, all or none; what is awaited gives the index of the first once they are stored.

        `records`: an iterable of bytes or whatever has a buffer, at least one, together up to `options.batch_bytes_max`
        bytes. `codec`, how they are stored: "none", "lz4" or "zstd". Does not block, except for the packing, without the GIL.
        Room in the queue is awaited for as long as it takes. Who is cancelled does not know whether they are appended.

        Raises what `append_batch` does, but never `BusyError` or `TimeoutError`. `RuntimeError`: no event loop runs on this
        thread; then nothing is appended."""
    def get(self, index: int) -> Record:
        """Returns the `Record` at `index`, from 1.

        Blocks for the disk at most, without the GIL. Raises `OutOfRangeError`: there is no such record yet;
        `DiscardedError`: not any more; `InvalidArgumentError`, `TypeError`: `index`; `CorruptError`, `IoError`: the files;
        `ClosedError`."""
    def report_damage(self, index: int) -> None:
        """Says that the bytes of the record at `index` were found damaged in this directory. Returns None.

        A replica of a cluster looks at the record's segment at once, and repairs what it finds with what other replicas have;
        where there is none, it is counted and logged. Reads report what they meet by themselves. A report of what is sound
        only costs a look. Blocks for the disk, without the GIL, not for the repair.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `UnavailableError`: the log is being repaired as a
        whole; `InvalidArgumentError`, `TypeError`: `index`; `ClosedError`."""
    def read(self, start: _From = None) -> Reader:
        """Reads from `start` on. Returns a `Reader` that ends where the log ends when it comes there.

        `start`: an index from 1, a `Start`, or None: the first record. Blocks for the disk at most, without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: what is no
        start; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def tail(self, start: _From = None) -> Reader:
        """Reads from `start` on, and waits at the end for more. Returns a `Reader`.

        It begins at the end if `start` is not given: what is there already is not read. `Reader.start` is the index of the
        record that it begins with.

        `start`: an index from 1, a `Start`, or None: the next record to come. Blocks for the disk at most, without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: what is no
        start; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def batches(self, start: _From = None, *, follow: bool = False) -> Stream[Batch]:
        """Reads in batches from `start` on. Returns a `Stream` of `Batch`.

        `start`: an index from 1, a `Start`, or None: the first record. `follow`: whether it waits at the end for more; if
        not, it ends where the log ends when it comes there. Blocks for the disk at most, without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: what is no
        start; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def discard(self, first: int) -> None:
        """Discards all records below `first`, an index from 1, durably. Returns None.

        At or below the first record nothing happens. A `first` beyond the end moves the log's numbers on for good: it is
        empty then, and the next record gets the index `first`. `info().last + 1` empties it and loses no number. Blocks,
        without the GIL; Ctrl-C ends the wait.

        Raises `PoisonedError`, `ClosedError`, `FullError`, `BusyError`; `InvalidArgumentError`, `TypeError`: `first`. To
        ask again does no harm."""
    def submit_discard(self, first: int) -> Ticket:
        """Begins to discard all records below `first`, as `discard` does. Returns a `Ticket`, done once it is durable.

        The ticket's index is at or below the log's first one then. Does not block. Raises what `discard` does."""
    def submit_barrier(self, timeout: float = 30.0) -> Ticket:
        """Begins a barrier, as `barrier` does. Returns a `Ticket` that tells the index of the last record then.

        `timeout`: seconds, from 0: for so long the barrier may take. Does not block. Raises what `barrier` does;
        `UnavailableError` comes with the ticket."""
    def barrier(self, timeout: float = 30.0) -> int:
        """Waits until all that was appended before the call can be read here. Returns the last index then; 0: none.

        `timeout`: seconds, from 0. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `UnavailableError`: not in time; `PoisonedError`, `ClosedError`, `BusyError`; `InvalidArgumentError`,
        `TypeError`: `timeout`."""
    def wait_for(self, index: int, timeout: float | None = None) -> None:
        """Waits until record `index`, from 0, is there or is discarded. Returns None.

        `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`: not in time; `ClosedError`, `PoisonedError`: it does not come any more;
        `InvalidArgumentError`, `TypeError`: an argument."""
    def wait_for_async(self, index: int) -> Pending[None]:
        """`wait_for`, to be awaited: gives None once record `index`, from 0, is there or is discarded.

        Does not block. To have an end to it, cancel it or use `asyncio.timeout`.

        Raises `ClosedError`, `PoisonedError`: it does not come any more; `InvalidArgumentError`, `TypeError`: `index`;
        `RuntimeError`: no event loop runs on this thread."""
    def session(self) -> Session:
        """Opens an exactly-once session, durably. Returns a `Session`.

        Blocks, without the GIL; Ctrl-C ends the wait. Raises `TooManySessionsError`: `options.sessions_max` are open, and
        all have appended; `FullError`, `BusyError`, `PoisonedError`, `ClosedError`."""
    def resume_session(self, id: int, next_sequence: int) -> Session:
        """Takes a session up again. Returns a `Session`.

        `id`: `Session.id`. `next_sequence`: the number of its next append, from 1. An append that is repeated under the
        number that it had gets the index that it has, and is stored once. Does not block, and does not look whether the
        session is known: its first append raises `SessionExpiredError` or `SequenceGapError`.

        Raises `InvalidArgumentError`, `TypeError`: an argument; `ClosedError`."""
    def info(self) -> Info:
        """Returns `Info`: how the log stands now.

        Does not block. Raises `ClosedError`."""
    def stats(self) -> Stats:
        """Returns `Stats`: what the log did since it was opened.

        Does not block. Raises `ClosedError`."""
    def backlog(self) -> Backlog:
        """Returns `Backlog`: what waits in the log now.

        Does not block. Raises `ClosedError`."""
    def log_options(self) -> dict[str, int]:
        """Returns the options that are set for the log, a dict of their names and values.

        As far as this replica knows them committed. The same on every replica; they take the place of those that a leader was opened with. Names and units: see
        `set_log_options`. Does not block. Raises `ClosedError`."""
    def set_log_options(self, changes: Mapping[str, int | None], timeout: float = 10.0) -> None:
        """Sets options of the log, on the leader, and waits until that is committed. Returns None.

        `changes`: a mapping of names to values: `retention_bytes`, `capacity_bytes`, `record_bytes_max`, in bytes; `retention_age`,
        `session_idle_max`, in milliseconds; `sessions_max`, `session_window`. A value of None: it is set no more, and the leader's
        own holds. 2**64 - 1: no limit, of retention and capacity. What is not named stays as it is. `timeout`: seconds, from 0: for
        so long members are waited for that have to say that they know options of the log. Blocks, without the GIL; Ctrl-C ends
        the wait.

        Raises `InvalidArgumentError`, `TypeError`: an option or its value; `UnsupportedError`: a member of an earlier version;
        `NotLeaderError`, `RemovedError`, `FullError`, `BusyError`: nothing was changed; `UnavailableError`: it may or may not come
        about; `PoisonedError`, `ClosedError`. To ask again does no harm."""
    def submit_set_log_options(self, changes: Mapping[str, int | None], timeout: float = 10.0) -> Ticket:
        """Begins to set options of the log, as `set_log_options` does. Returns a `Ticket`, done once that is committed.

        `changes`: as there. `timeout`: seconds, from 0: for so long members are waited for. The ticket's index has no meaning. Does
        not block. Raises what `set_log_options` does."""
    @property
    def record_bytes_max(self) -> int:
        """Bytes of the largest record that the log takes: the log's option, or where that is not set what it was opened with."""
    @property
    def session_window(self) -> int:
        """How many of a session's latest batches are remembered: the log's option, or what it was opened with."""
    def shortage_cause(self) -> Error | None:
        """Returns why this replica does not take what the log holds or may hold, an `Error`; None: nothing is the matter.

        `FullError`, `IoError`: no room on its disk; `TooLargeError`: its segments are too small for what the leader sends;
        `InvalidArgumentError`: its options do not go with those of the log. Does not block. Raises `ClosedError`."""
    def poison_cause(self) -> Error | None:
        """Returns why the log takes no more appends, the `Error` of a write or sync that failed; None: it takes them.

        Does not block. Also after `close()`."""
    @property
    def options(self) -> Options:
        """The `Options` in force, each with its value.

        What was given, defaults, and limits that came down with the segments' size. Also after `close()`."""
    @property
    def path(self) -> Path:
        """The directory, a `pathlib.Path`. Also after `close()`."""
    def close(self) -> None:
        """Ends appending: what was submitted is still written. Returns None. From any thread, and more than once.

        Blocks until all is durable and the directory is free, without the GIL; Ctrl-C ends the wait, and the closing goes
        on. Readers go on to the end; whoever waits there, or in `wait_for`, is woken with `ClosedError`.

        Raises `PoisonedError`: a write or sync had failed, and some appends have an unknown outcome."""
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
    """Appends that happen once each, in order, however often they are tried. Made by `Log.session`, `Log.resume_session`.

    Each append has a number. To try one again after a `TimeoutError`, or in another process, keep `id` and the
    `next_sequence` from before it, and append the same records to `log.resume_session(id, that number)`: they get the
    indexes that they have. Appended again to the session as it is, they get the next number, and can be stored twice.

    To be used from any thread, by one after the other. In a forked child every call raises `ForkedError`."""

    @property
    def id(self) -> int:
        """The session's name for ever, an integer. Raises `ClosedError` after `close()`."""
    @property
    def next_sequence(self) -> int:
        """The number that the next append gets, from 1. Raises `ClosedError` after `close()`."""
    def append(self, record: Buffer, timeout: float | None = None) -> int:
        """Appends a record, once, and waits until it is on stable storage. Returns its index, from 1.

        `record`: bytes or anything with a buffer, up to the log's `Options.record_bytes_max` bytes. `timeout`: seconds,
        from 0; None: no limit. Room, in the session's window and in the log's queue, is waited for at most
        `Options.queue_timeout` seconds. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`, `UnavailableError`, `PoisonedError`: the record MAY STILL BE APPENDED; to append it again
        without storing it twice, resume the session at its number. So it is after Ctrl-C. `SequenceForgottenError`: it IS
        in the log; go on with the next. `BusyError`, `FullError`, `TooLargeError`, `SessionExpiredError`,
        `SequenceGapError`, `ClosedError`, `TypeError`, `InvalidArgumentError` (an argument): it is surely not."""
    def append_batch(
        self, records: Iterable[Buffer], codec: _Codec = "none", timeout: float | None = None
    ) -> range:
        """Appends records as one batch, once, all or none, and waits for stable storage. Returns the range of their indexes.

        `records`: an iterable of bytes or whatever has a buffer, at least one, together up to the log's
        `Options.batch_bytes_max` bytes. `codec`, how they are stored: "none", "lz4" or "zstd". `timeout`: seconds, from 0;
        None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises what `append` does, of all the records: after `TimeoutError` they MAY STILL BE APPENDED.
        `InvalidArgumentError` also where there are none."""
    def submit(self, record: Buffer) -> Ticket:
        """Begins to append a record, once. Returns a `Ticket` that tells its index.

        `record`: bytes or anything with a buffer, up to the log's `Options.record_bytes_max` bytes. Blocks while the
        session's window or the log's queue is full, at most `Options.queue_timeout` seconds, without the GIL; Ctrl-C ends
        the wait.

        Raises `BusyError` (no room in that time), `FullError`, `TooLargeError`, `PoisonedError`, `ClosedError`,
        `TypeError`: the record was not taken, and its number goes to the next append. The ticket can raise the rest of what
        `append` does."""
    def submit_batch(self, records: Iterable[Buffer], codec: _Codec = "none") -> Ticket:
        """Begins to append records as one batch, once, all or none. Returns a `Ticket` that tells the index of the first.

        `records`: an iterable of bytes or whatever has a buffer, at least one, together up to the log's
        `Options.batch_bytes_max` bytes. `codec`, how they are stored: "none", "lz4" or "zstd". Blocks as `submit` does.

        Raises what `submit` does, and `InvalidArgumentError`: no records, or no codec. None of them was taken."""
    def try_submit(self, record: Buffer) -> Ticket:
        """As `submit`, with `record`, but raises `BusyError` where there is no room, or another thread uses the session.

        Does not block. Raises what `submit` does: the record was not taken."""
    def try_submit_batch(self, records: Iterable[Buffer], codec: _Codec = "none") -> Ticket:
        """As `submit_batch`, with `records` and `codec`, but raises `BusyError` where there is no room or another thread is at it.

        Does not block, except for the packing, without the GIL. Raises what `submit_batch` does: none of them was taken."""
    def close(self) -> None:
        """Ends the session once all of it is answered: the log forgets it. Without that it can be resumed. Returns None.

        Blocks, without the GIL; Ctrl-C ends the wait. Raises `PoisonedError`, `FullError`, `ClosedError` (of the log).
        Closing again does nothing."""
    def __reduce__(self) -> NoReturn: ...

@final
class ReadOnlyLog:
    """A log in a directory, read-only, also while another process appends to it.

    `ReadOnlyLog(dir)` opens the log in `dir`, a str or path. Blocks until its files are read, without the GIL; Ctrl-C ends
    the wait. Raises `NotFoundError`: there is none; `CorruptError`, `UnsupportedError`, `IoError`: the files.

    To be used from any number of threads; in a forked child every call raises `ForkedError`. `with` and `async with`
    close it."""

    def __new__(cls, dir: _Dir) -> Self: ...
    def get(self, index: int) -> Record:
        """Returns the `Record` at `index`, from 1.

        Blocks for the disk at most, without the GIL. Raises `OutOfRangeError`: there is no such record yet;
        `DiscardedError`: not any more; `InvalidArgumentError`, `TypeError`: `index`; `CorruptError`, `IoError`: the files;
        `ClosedError`."""
    def read(self, start: _From = None) -> Reader:
        """Reads from `start` on. Returns a `Reader` that ends where the log ends when it comes there.

        `start`: an index from 1, a `Start`, or None: the first record. Blocks for the disk at most, without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: what is no
        start; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def tail(self, start: _From = None) -> Reader:
        """Reads from `start` on, and waits at the end for more. Returns a `Reader`.

        It begins at the end if `start` is not given: what is there already is not read. `Reader.start` is the index of the
        record that it begins with.

        `start`: an index from 1, a `Start`, or None: the next record to come. Blocks for the disk at most, without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: what is no
        start; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def batches(self, start: _From = None, *, follow: bool = False) -> Stream[Batch]:
        """Reads in batches from `start` on. Returns a `Stream` of `Batch`.

        `start`: an index from 1, a `Start`, or None: the first record. `follow`: whether it waits at the end for more; if
        not, it ends where the log ends when it comes there. Blocks for the disk at most, without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: what is no
        start; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def info(self) -> Info:
        """Returns `Info`: how the log stands, as far as it is proven durable.

        Does not block. Raises `ClosedError`."""
    def unproven(self) -> int:
        """Returns how many records stand behind the last one shown and are not proven durable.

        Does not block. Raises `ClosedError`."""
    def members(self) -> list[Member] | None:
        """Returns who belongs to the cluster as far as the files here say, a list of `Member`; None: it is a log on its own.

        Does not block. Raises `ClosedError`."""
    def log_options(self) -> dict[str, int]:
        """Returns the options that are set for the log, a dict of their names and values: as `Log.log_options`.

        Does not block. Raises `ClosedError`."""
    def failure(self) -> Error | None:
        """Returns why the view does not go on, an `Error`, if it met damage; None: it goes on.

        Does not block. Raises `ClosedError`."""
    def close(self) -> None:
        """Ends the view. Returns None. From any thread, and more than once.

        Does not block. Readers go on to the end of what it showed; whoever waits there is woken with `ClosedError`."""
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
    """A log over the network: finds and follows the leader.

    `Client(servers, options=None)` finds the cluster that `servers`, an iterable of "host:port", are part of: one that
    answers is enough. `options`: `ClientOptions`, None: the defaults. Blocks for at most `ClientOptions.timeout`
    seconds, without the GIL; Ctrl-C ends the wait.

    Raises `TimeoutError`, `UnavailableError`: none answered in time; `UnauthenticatedError`, `PermissionDeniedError`:
    the token; `NotFoundError`: they have no log of that name; `UnsupportedError`: they speak another version;
    `InvalidArgumentError`, `TypeError`: no address, an option, or servers of different logs.

    To be used from any number of threads; in a forked child every call raises `ForkedError`. `with` and `async with`
    close it. Every call can take `ClientOptions.timeout` seconds with all its attempts."""

    def __new__(cls, servers: Iterable[str], options: ClientOptions | None = None) -> Self: ...
    @staticmethod
    def connect_async(servers: Iterable[str], options: ClientOptions | None = None) -> Pending[Client]:
        """Connects; what is awaited gives the `Client`.

        `servers` and `options` are those of `Client`, and so is what it raises. Does not block. `RuntimeError`: no event
        loop runs on this thread."""
    def producer(self, options: ProducerOptions | None = None) -> Producer:
        """Makes a producer: gathers records and appends them, by default once each. Returns a `Producer`.

        `options`: `ProducerOptions`, None: the defaults. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`, `UnavailableError`: no answer within `ClientOptions.timeout` seconds; `UnauthenticatedError`,
        `PermissionDeniedError`: the token; `ClosedError`; `InvalidArgumentError`, `TypeError`: an option."""
    def producer_async(self, options: ProducerOptions | None = None) -> Pending[Producer]:
        """Makes a producer; what is awaited gives the `Producer`.

        `options` are those of `producer`, and so is what it raises. Does not block. `RuntimeError`: no event loop runs on
        this thread."""
    def reader(
        self, start: _From = None, options: ReaderOptions | None = None, *, follow: bool = True
    ) -> Reader:
        """Reads from `start` on, and waits at the end for more unless `follow` is False. Returns a `Reader`.

        `start`: an index from 1, a `Start`, or None: the first record. `options`: `ReaderOptions`, None: the defaults. Does
        not block: it connects when it is first asked, and tells then what is wrong with `start`.

        Raises `InvalidArgumentError`, `TypeError`: an argument or an option; `ClosedError`."""
    def read(self, start: _From = None, options: ReaderOptions | None = None) -> Reader:
        """Reads from `start` on. Returns a `Reader` that ends where the log ends when it comes there.

        `start`: an index from 1, a `Start`, or None: the first record. `options`: `ReaderOptions`, None: the defaults. Does
        not block. Raises what `reader` does."""
    def tail(self, start: _From = None, options: ReaderOptions | None = None) -> Reader:
        """Reads from `start` on, and waits at the end for more. Returns a `Reader`.

        It begins at the end if `start` is not given: what is there already is not read. `Reader.start` is the index of the
        record that it begins with.

        `start`: an index from 1, a `Start`, or None: the next record to come, as of when it is first asked. `options`:
        `ReaderOptions`, None: the defaults. Does not block. Raises what `reader` does."""
    def batches(
        self, start: _From = None, options: ReaderOptions | None = None, *, follow: bool = False
    ) -> Stream[Batch]:
        """Reads in batches from `start` on. Returns a `Stream` of `Batch`.

        `start`: an index from 1, a `Start`, or None: the first record. `options`: `ReaderOptions`, None: the defaults.
        `follow`: whether it waits at the end for more; if not, it ends where the log ends when it comes there. Does not
        block. Raises what `reader` does."""
    def info(self, *, stale: bool = False) -> RemoteInfo:
        """Returns `RemoteInfo`: how the log stands, with all that was acknowledged before.

        `stale`: as any replica knows it, without a majority. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`, `UnavailableError`: no answer within `ClientOptions.timeout` seconds; `UnauthenticatedError`,
        `PermissionDeniedError`: the token; `ClosedError`."""
    def info_async(self, *, stale: bool = False) -> Pending[RemoteInfo]:
        """`info`, to be awaited: gives `RemoteInfo`.

        `stale` is that of `info`, and so is what it raises. Does not block. `RuntimeError`: no event loop runs on this
        thread."""
    def discard(self, first: int) -> None:
        """Discards all records below `first`, an index from 1. Returns None.

        A `first` beyond the end moves the log's numbers on for good: it is empty then, and the next record gets the index
        `first`. `info().last + 1` empties it and loses no number. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`, `UnavailableError`: no answer within `ClientOptions.timeout` seconds; `UnauthenticatedError`,
        `PermissionDeniedError`: the token; `ClosedError`; `InvalidArgumentError`, `TypeError`: `first`. To ask again does
        no harm."""
    def discard_async(self, first: int) -> Pending[None]:
        """`discard`, to be awaited: gives None once all records below `first`, an index from 1, are discarded.

        Raises what `discard` does. Does not block. `RuntimeError`: no event loop runs on this thread."""
    def open_session(self) -> int:
        """Opens a session, for a producer that is to go on in it after a restart. Returns its id.

        Give `ProducerOptions(session=(id, 1))` first, and after a restart the number of the first batch that is not known
        to be in the log. A session that is not used for long expires. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TooManySessionsError`; `TimeoutError`, `UnavailableError`: no answer within `ClientOptions.timeout` seconds;
        `UnauthenticatedError`, `PermissionDeniedError`: the token; `ClosedError`."""
    def watch(self, interval: float = 0.1) -> Watch:
        """Watches how the log stands, now and whenever that changes. Returns a `Watch`, an iterator of `RemoteInfo`.

        `interval`: seconds, from 0: it is told at most so often. Does not block.

        Raises `InvalidArgumentError`, `TypeError`: `interval`; `ClosedError`."""
    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that the servers take, in bytes, as they told last. Raises `ClosedError`."""
    def close(self) -> None:
        """Ends the client's own calls and its watches: whoever waits in one is woken with `ClosedError`. Returns None.

        Producers and readers go on until they are closed themselves. Does not block. From any thread, and more than once."""
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
    """How a log stands, now and whenever that changes: an iterator of `RemoteInfo`, also for `async for`.

    Made by `Client.watch`. It never ends by itself; with the watch or its client closed it raises `ClosedError`. From
    any thread, one after the other. `with` and `async with` close it."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> RemoteInfo: ...
    def next(self, timeout: float | None = None) -> RemoteInfo:
        """Returns `RemoteInfo`: at once the first time, then when it has changed.

        `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`: nothing changed in time; `UnavailableError`: no server could be had; `UnauthenticatedError`,
        `PermissionDeniedError`: the token; `ClosedError`; `InvalidArgumentError`, `TypeError`: `timeout`."""
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, RemoteInfo]: ...
    def close(self) -> None:
        """Ends watching; whoever waits is woken with `ClosedError`. Returns None.

        Does not block. From any thread, and more than once."""
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
    """Appends records to servers: gathers them, and sends again what a failure left open. Made by `Client.producer`.

    A record that is given is sent again by itself until it is acknowledged or `ProducerOptions.delivery_timeout` has
    passed, and with `exactly_once`, the default, is stored once. Given again it is another record: after a
    `TimeoutError`, `UnavailableError` or `ClosedError` the first may be in the log, and both can come to be. To give it
    again safely, also after a restart, use `ProducerOptions.session` and `submit_batch`.

    To be used from any number of threads; in a forked child every call raises `ForkedError`. The end of a `with` or
    `async with` closes it, waits up to 30 seconds, and raises why a record is not in the log, as `close` does. Where an
    exception ends the block, a note of the exception tells how many are not, and a `ResourceWarning`, too.

    One that is dropped without being closed, with records under way, sends them in the background and warns: a
    `ResourceWarning` with their number. When the program ends, what is under way is sent for at most
    `ProducerOptions.exit_timeout` seconds. What is not acknowledged then is told, with its number, on stderr. A process that
    is killed, or ends by `os._exit`, tells nothing."""

    def send(self, record: Buffer) -> None:
        """Buffers a record. Returns None. Whether it is in the log, `flush` or `close` tells.

        `record`: bytes or anything with a buffer, as large as the servers take. Blocks while there is no room, for at most
        `ProducerOptions.block_max` seconds, without the GIL; Ctrl-C ends the wait.

        Raises `BusyError` (no room in that time), `TooLargeError`, `ClosedError`, `TypeError`, or what ended the producer:
        the record was not taken."""
    def try_send(self, record: Buffer) -> None:
        """As `send`, with `record`, but raises `BusyError` where there is no room.

        Does not block. Raises what `send` does: the record was not taken."""
    def append(self, record: Buffer, timeout: float | None = None) -> int:
        """Appends a record and waits until it is in the log. Returns its index, from 1.

        `record`: bytes or anything with a buffer, as large as the servers take. `timeout`: seconds, from 0; None: no limit.
        Room is waited for at most `ProducerOptions.block_max` seconds, the record for `ProducerOptions.delivery_timeout`.
        Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`, `UnavailableError`, `ClosedError`: the record MAY STILL BE APPENDED (after this `timeout`, or
        Ctrl-C, the producer goes on sending it): appended again it can be there twice. `SequenceForgottenError`: it IS in
        the log. `BusyError`, `FullError`, `TooManySessionsError`, `TooLargeError`, `TypeError`, `InvalidArgumentError` (an
        argument): it is surely not."""
    def submit(self, record: Buffer) -> Ticket:
        """Buffers a record. Returns a `Ticket` that tells its index.

        `record`: bytes or anything with a buffer, as large as the servers take. Blocks while there is no room, for at most
        `ProducerOptions.block_max` seconds, without the GIL; Ctrl-C ends the wait.

        Raises what `send` does: the record was not taken. The ticket can raise the rest of what `append` does."""
    def try_submit(self, record: Buffer) -> Ticket:
        """As `submit`, with `record`, but raises `BusyError` where there is no room.

        Does not block. Raises what `send` does: the record was not taken."""
    def submit_batch(self, records: Iterable[Buffer]) -> Ticket:
        """Buffers records that go as one batch, all or none. Returns a `Ticket` that tells the index of the first.

        `records`: an iterable of bytes or whatever has a buffer, at least one, together up to `ProducerOptions.batch_bytes`
        bytes and what the servers take. Blocks as `submit` does.

        Raises what `send` does, and `InvalidArgumentError`: there are none. None of them was taken."""
    def append_async(self, record: Buffer) -> Pending[int]:
        """Appends a record; what is awaited gives its index, from 1, once it is in the log.

        `record`: bytes or anything with a buffer, as large as the servers take. Does not block: room is awaited, for at
        most `ProducerOptions.block_max` seconds. Who is cancelled does not know whether it is appended.

        Raises what `append` does, and when: after `TimeoutError` or `ClosedError` the record MAY BE in the log.
        `RuntimeError`: no event loop runs on this thread; then nothing is appended."""
    @property
    def unacknowledged(self) -> int:
        """Records that were given and are not acknowledged, or failed and nobody was told of, also where a ticket could be
        asked. 0: all is well."""
    def flush(self, timeout: float = 30.0) -> None:
        """Waits until all records given before the call are settled. Returns None. From any thread.

        `timeout`: seconds, from 0. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises why a record failed since the last flush; `TimeoutError`: not all in time; they go on being sent;
        `InvalidArgumentError`, `TypeError`: `timeout`."""
    def flush_async(self, timeout: float = 30.0) -> Pending[None]:
        """`flush`, to be awaited: gives None once all records given before the call are settled.

        `timeout`: seconds, from 0. Does not block. Raises what `flush` does; `RuntimeError`: no event loop runs on this
        thread."""
    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that were given and are not settled."""
    def close(self, timeout: float = 30.0) -> Closed:
        """Takes no more records, and waits until all are in the log. Returns `Closed`, of which all is acknowledged.

        `timeout`: seconds, from 0: with it the producer ends, and what is left by then is told. Blocks, without the GIL;
        Ctrl-C ends the wait. From any thread, and more than once: each is told the same records.

        Raises why records are not in the log, those that are left or failed since the last `flush`: `TimeoutError`,
        `UnavailableError`, `FullError` or what ended the producer. Its attribute `closed`, a `Closed`, has the records that
        are left. `InvalidArgumentError`, `TypeError`: `timeout`."""
    def close_async(self, timeout: float = 30.0) -> Pending[Closed]:
        """`close`, to be awaited: gives `Closed`, of which all is acknowledged.

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

    `Follower(dir, cluster, start=None, options=None)` goes on with the copy in `dir`, a str or path, or begins one
    there. `cluster`: an iterable of servers, "host:port"; one that runs is enough. `start`, where a new copy begins: an
    index from 1, a `Start`, None: the first record. `options`: `FollowerOptions`, None: the defaults. A new copy waits
    for a server, at most `FollowerOptions.open_timeout` seconds. Blocks, without the GIL; Ctrl-C ends the wait.

    Raises `TimeoutError`, `UnavailableError`, `UnauthenticatedError`, `PermissionDeniedError`: no server could be had;
    `OutOfRangeError`, `DiscardedError`: there is no such record; `LockedError`, `CorruptError`, `UnsupportedError`,
    `IoError`: the files; `InvalidArgumentError`, `TypeError`: an argument or an option.

    To be used from any number of threads; in a forked child every call raises `ForkedError`. `with` and `async with`
    close it. After `close()` calls raise `ClosedError`, except for `close`, `path`, `options`, `poison_cause`, `status`
    and the events that are left; readers go on to the end of what is here."""

    def __new__(
        cls, dir: _Dir, cluster: Iterable[str], start: _From = None, options: FollowerOptions | None = None
    ) -> Self: ...
    @staticmethod
    def open_async(
        dir: _Dir, cluster: Iterable[str], start: _From = None, options: FollowerOptions | None = None
    ) -> Pending[Follower]:
        """Opens a follower; what is awaited gives the `Follower`.

        `dir`, `cluster`, `start`, `options` are those of `Follower`, and so is what it raises. Does not block. When it is
        cancelled the opening goes on, and what it opens is closed. `RuntimeError`: no event loop runs on this thread."""
    def get(self, index: int) -> Record:
        """Returns the `Record` at `index`, from 1.

        Blocks for the disk at most, without the GIL. Raises `OutOfRangeError`: there is no such record yet;
        `DiscardedError`: not any more; `InvalidArgumentError`, `TypeError`: `index`; `CorruptError`, `IoError`: the files;
        `ClosedError`."""
    def read(self, start: _From = None) -> Reader:
        """Reads what is here from `start` on. Returns a `Reader` that ends where the log ends when it comes there.

        `start`: an index from 1, a `Start`, or None: the first record. Blocks for the disk at most, without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: what is no
        start; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def tail(self, start: _From = None) -> Reader:
        """Reads what is here from `start` on, and waits at the end for more. Returns a `Reader`.

        It begins at the end if `start` is not given: what is there already is not read. `Reader.start` is the index of the
        record that it begins with.

        `start`: an index from 1, a `Start`, or None: the next record to come. Blocks for the disk at most, without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: what is no
        start; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def batches(self, start: _From = None, *, follow: bool = False) -> Stream[Batch]:
        """Reads what is here in batches from `start` on. Returns a `Stream` of `Batch`.

        `start`: an index from 1, a `Start`, or None: the first record. `follow`: whether it waits at the end for more; if
        not, it ends where the log ends when it comes there. Blocks for the disk at most, without the GIL.

        Raises `OutOfRangeError`, `DiscardedError`: there is no such record; `InvalidArgumentError`, `TypeError`: what is no
        start; `CorruptError`, `IoError`: the files; `ClosedError`."""
    def wait_for(self, index: int, timeout: float | None = None) -> None:
        """Waits until record `index`, from 0, is here or is discarded. Returns None.

        `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.

        Raises `TimeoutError`: not in time; `ClosedError`, or why the follower ended by itself: it does not come any more;
        `InvalidArgumentError`, `TypeError`: an argument."""
    def wait_for_async(self, index: int) -> Pending[None]:
        """`wait_for`, to be awaited: gives None once record `index`, from 0, is here or is discarded.

        Does not block. To have an end to it, cancel it or use `asyncio.timeout`.

        Raises `ClosedError`, or why the follower ended by itself: it does not come any more; `InvalidArgumentError`,
        `TypeError`: `index`; `RuntimeError`: no event loop runs on this thread."""
    def info(self) -> Info:
        """Returns `Info`: how the copy stands, as a log.

        Does not block. Raises `ClosedError`."""
    def status(self) -> FollowerStatus:
        """Returns `FollowerStatus`: how following goes. Also after `close()`.

        Does not block."""
    def next_event(self, timeout: float | None = None) -> FollowerEvent:
        """Returns the next `FollowerEvent`, and waits for one. Each is given once; the newest 1,024 are kept.

        `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait. From any thread.

        Raises `TimeoutError`: nothing happened in time; `ClosedError`: nothing will any more; `InvalidArgumentError`,
        `TypeError`: `timeout`."""
    def next_event_async(self) -> Pending[FollowerEvent]:
        """`next_event`, to be awaited: gives the next `FollowerEvent`. By one task at a time.

        Does not block. Who is cancelled has taken nothing. Raises `ClosedError`: nothing will happen any more;
        `RuntimeError`: another task waits, or no event loop runs on this thread."""
    def stats(self) -> Stats:
        """Returns `Stats`: what the copy did since it was opened.

        Does not block. Raises `ClosedError`."""
    def backlog(self) -> Backlog:
        """Returns `Backlog`: what waits in the copy now.

        Does not block. Raises `ClosedError`."""
    def poison_cause(self) -> Error | None:
        """Returns why the copy takes no more, the `Error` of a write or sync that failed; None: it goes on.

        Does not block. Also after `close()`."""
    @property
    def options(self) -> Options:
        """The `Options` of the copy's files that are in force, each with its value.

        What was given, defaults, and limits that came down with the segments' size. Also after `close()`."""
    @property
    def path(self) -> Path:
        """The directory, a `pathlib.Path`. Also after `close()`."""
    def close(self) -> None:
        """Ends following. Returns None. From any thread, and more than once.

        Blocks until what was taken is durable and the directory is free, without the GIL; no server is waited for; Ctrl-C
        ends the wait, and the closing goes on. Readers go on to the end of what is here; whoever waits there, in `wait_for`
        or in `next_event`, is woken with `ClosedError`.

        Raises `PoisonedError`: a write had failed."""
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
class _Courier:
    def __new__(cls) -> Self: ...
    def fileno(self) -> int: ...
    def drain(self) -> None: ...

def _end() -> None: ...
def _error_kinds() -> list[tuple[str, int, bool, bool]]: ...
