"""Arrow: a log as tables, without a copy of its records, and without pyarrow in the package."""

import datetime
import gc
import subprocess
import sys
import threading
from pathlib import Path

import chiplog
import pyarrow as pa
import pytest
from conftest import PATIENCE, SMALL
from test_views import address

SCHEMA = pa.schema([
    pa.field("index", pa.uint64(), nullable=False),
    pa.field("time", pa.timestamp("ms", "UTC"), nullable=False),
    pa.field("data", pa.binary(), nullable=False),
])


def test_a_log_is_a_table(log: chiplog.Log) -> None:
    log.append(b"one")
    log.append_batch([b"two", b"", b"four"], codec="zstd")
    table = pa.table(log.batches())
    assert table.schema == SCHEMA
    table.validate(full=True)
    assert table.column("index").to_pylist() == [1, 2, 3, 4]
    assert table.column("data").to_pylist() == [b"one", b"two", b"", b"four"]
    times = [datetime.datetime.fromtimestamp(r.timestamp / 1000, datetime.UTC) for r in log.read()]
    assert table.column("time").to_pylist() == times
    for same in (pa.table(log.read()), pa.table(log.read().views()), pa.table(log.batches(1))):
        assert same.equals(table)
    assert pa.table(log.batches(5)).num_rows == 0, "an empty table has its columns"
    assert pa.table(log.batches(5)).schema == SCHEMA
    assert "pyarrow" not in sys.modules["chiplog"].__dict__


def test_small_batches_are_collected(log: chiplog.Log) -> None:
    """A log appended record by record became a table with one piece per record."""
    records = [b"%d" % n * (n % 7) for n in range(20_000)]
    tickets = [log.submit(record) for record in records]
    log.submit_batch([bytes(40_000), bytes(40_000)])  # large enough not to be copied
    tickets += [log.submit(b"behind"), log.submit(b"it")]
    tickets[-1].wait(PATIENCE)
    table = pa.table(log.batches())
    table.validate(full=True)
    assert table.column("index").to_pylist() == list(range(1, 20_005))
    assert table.column("data").to_pylist() == [*records, bytes(40_000), bytes(40_000), b"behind", b"it"]
    times = [int(r.timestamp) for r in log.read()]
    assert table.column("time").cast(pa.int64()).to_pylist() == times
    chunks = table.column("data").chunks
    assert len(chunks) < 20 and chunks[-1].to_pylist() == [b"behind", b"it"]
    (large,) = (batch for batch in log.batches() if batch.data.nbytes == 80_000)
    assert chunks[-2].buffers()[2].address == address(large.data)
    assert pa.table(log.batches(10_000)).column("index").to_pylist() == list(range(10_000, 20_005))
    tail = pa.RecordBatchReader.from_stream(log.batches(20_003, follow=True))
    assert tail.read_next_batch().to_pydict()["data"] == [b"behind", b"it"], "the existing records, without waiting for more"


def test_a_reader_exports_from_its_position(log: chiplog.Log) -> None:
    log.append_batch([b"one", b"two", b"three"])
    reader = log.read()
    assert next(reader).copy() == b"one"
    assert pa.table(reader).column("index").to_pylist() == [2, 3]
    assert pa.table(reader).num_rows == 0


def test_the_records_are_not_copied_and_outlive_the_log(tmp_path: Path) -> None:
    log = chiplog.Log(tmp_path, SMALL)
    log.append_batch([b"to", b"be"])
    table = pa.table(log.batches())  # one small batch alone
    assert table.column("data").chunk(0).buffers()[2].address == address(next(log.batches()).data)
    first, data = table.column("index"), table.column("data")
    log.close()
    del log, table
    gc.collect()
    assert (first.to_pylist(), data.to_pylist()) == ([1, 2], [b"to", b"be"])
    capsule = chiplog.ReadOnlyLog(tmp_path).batches().__arrow_c_stream__()
    del capsule  # no consumer takes it
    gc.collect()


def test_a_following_stream_is_read_batch_by_batch(log: chiplog.Log) -> None:
    log.append(b"one")
    tail = log.batches(follow=True)
    batches = pa.RecordBatchReader.from_stream(tail)
    assert batches.schema == SCHEMA
    assert batches.read_next_batch().to_pydict()["data"] == [b"one"]
    later = threading.Timer(0.05, lambda: log.append(b"two"))
    later.start()
    assert batches.read_next_batch().to_pydict()["index"] == [2]
    later.join()
    closing = threading.Timer(0.05, tail.close)
    closing.start()
    with pytest.raises(OSError, match="ClosedError: the reader was closed"):
        batches.read_next_batch()
    closing.join()


WITHOUT_MEMORY = """
import _testcapi, ctypes, sys
import chiplog
log = chiplog.Log(sys.argv[1], chiplog.Options(segment_bytes=1 << 20))
for _ in range(40):
    log.append(b"x")
log.append_batch([bytes(40_000)] * 2)
log.append(b"x")
next(log.batches())  # types are made once
reader = log.read()
batches = reader.batches()

class Array(ctypes.Structure):
    _fields_ = [("length", ctypes.c_int64), ("rest", ctypes.c_int64 * 9)]

class Stream(ctypes.Structure):
    pass

get_next = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Stream), ctypes.POINTER(Array))
Stream._fields_ = [("get_schema", ctypes.c_void_p), ("get_next", get_next), ("rest", ctypes.c_void_p * 3)]
capsule = batches.__arrow_c_stream__()
pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.POINTER(Stream), [ctypes.py_object, ctypes.c_char_p]
stream, array = pointer(capsule, b"arrow_array_stream"), Array()
to_array, next_table = ctypes.pointer(array), stream.contents.get_next

def table():  # nothing is allocated behind the call
    if next_table(stream, to_array):
        raise MemoryError

def batch():
    got[0] = next(batches)

step, seen, failed, n = {"table": table, "batch": batch}[sys.argv[2]], 0, 0, 0
while seen < 43:
    n += 1
    before, got, is_over = reader.position, [None], False
    _testcapi.set_nomemory(n % 30, n % 30 + 1)
    try:
        step()
        is_over = True
    except (MemoryError, ctypes.ArgumentError):
        pass
    finally:
        _testcapi.remove_mem_hooks()
    failed += not is_over
    records = 0 if not is_over else array.length if got[0] is None else len(got[0])
    seen += records
    assert reader.position == before + records, (n, before, records, reader.position)
    array.length = 0
assert (seen, reader.position) == (43, 44) and failed, (seen, failed)
print("all")
"""


@pytest.mark.parametrize("step", ["table", "batch"])
def test_a_step_without_memory_skips_nothing(tmp_path: Path, step: str) -> None:
    """A batch whose allocation failed was lost, and so were those collected before it."""
    pytest.importorskip("_testcapi", reason="lets one allocation fail")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY, str(tmp_path), step], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == "all\n", done.stderr


def crc32c(data: bytes | bytearray) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return (crc ^ 0xFFFFFFFF).to_bytes(4, "little")


def make_undecodable(directory: Path, record: bytes) -> None:
    """Replaces the batch of `record` and two empty ones with zeros, packed, without the table of their ends: docs/format.md."""
    (path,) = (path for path in directory.glob("*") if path.is_file() and record in path.read_bytes())
    file = bytearray(path.read_bytes())
    at = file.index(record) - 40
    length = 40 + len(record) + 12
    packed = b"\x1f\0\1\0" + b"\xff" * 399 + b"\xe6\x50\0\0\0\0\0"
    assert length == 40 + len(packed)
    file[at + 12 : at + 16] = (102_000).to_bytes(4, "little")
    file[at + 34] = 1
    file[at + 40 : at + length] = packed
    file[at : at + 4] = crc32c(file[at + 4 : at + length])
    block = at - 64
    assert file[block : block + 4] == b"CLB1"
    file[block + 56 : block + 60] = crc32c(file[at : at + 4])
    file[block + 4 : block + 8] = crc32c(file[48:56] + file[block + 8 : block + 64])
    path.write_bytes(file)


def test_a_batch_that_was_not_reported_is_not_skipped(tmp_path: Path) -> None:
    """The export looks ahead, and leaves an error to its next step: the batch was skipped, and nobody had been told."""
    record = b"Q" * 398
    with chiplog.Log(tmp_path, SMALL) as log:
        log.append(b"before")
        log.append_batch([record, b"", b""])
        log.append(b"behind")
    make_undecodable(tmp_path, record)
    with chiplog.Log(tmp_path, SMALL) as log:
        reader = log.read()
        assert pa.RecordBatchReader.from_stream(reader).read_next_batch().num_rows == 1
        assert reader.skip_batch() == 2
        with pytest.raises(chiplog.UndecodableError):
            next(reader)
        assert reader.skip_batch() == 5
        assert next(reader).copy() == b"behind"


def test_a_panic_is_an_error_of_the_consumer_and_ends_the_stream(tmp_path: Path) -> None:
    """It ended the process: no panic may leave a C function."""
    program = (
        "import os, signal, sys, threading, chiplog, pyarrow\n"
        "log = chiplog.Log(sys.argv[1])\nlog.append(b'x')\n"
        "try:\n    log.get(9)\nexcept chiplog.OutOfRangeError:\n    pass\n"
        "stream = pyarrow.RecordBatchReader.from_stream(log.batches(follow=True))\nstream.read_next_batch()\n"
        "(panic,) = [kind for kind in BaseException.__subclasses__() if kind.__name__ == 'PanicException']\n"
        "def planted(*_):\n    raise panic('planted')\n"
        "signal.signal(signal.SIGUSR1, planted)\n"
        "while True:\n"
        "    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()\n"
        "    try:\n        stream.read_next_batch()\n"
        "    except panic:\n        continue  # the signal came before the wait\n"
        "    except OSError as error:\n        print(error)\n        break\n"
        "try:\n    stream.read_next_batch()\nexcept OSError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.count("the reader panicked") == 2, (done.stdout, done.stderr)


def test_ctrl_c_ends_the_wait(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, threading, chiplog, pyarrow\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "log = chiplog.Log(sys.argv[1])\n"
        "while True:\n"
        "    try:\n"
        "        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "        pyarrow.table(log.batches(follow=True))\n        print('an end')\n        break\n"
        "    except KeyboardInterrupt:\n        continue  # the signal came before the wait\n"
        "    except OSError as error:\n        print(error)\n        break\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.startswith("KeyboardInterrupt"), done.stderr
