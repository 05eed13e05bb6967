"""Views: no copy, read-only, and valid as long as they are held."""

import gc
import os
from pathlib import Path

import chiplog
import numpy as np
import pyarrow as pa
import pytest
from conftest import SMALL


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, "u1").ctypes.data)


def test_views_are_slices_of_one_buffer(log: chiplog.Log) -> None:
    log.append_batch([b"to", b"be", b"", b"or"])
    (batch,) = log.batches()
    assert bytes(batch.data) == b"tobeor" and list(batch.offsets) == [0, 2, 4, 4, 6]
    assert batch.data.readonly and batch.offsets.readonly
    assert batch.offsets.format == "i" and batch.offsets.shape == (5,) and batch.offsets.strides == (4,)
    assert [bytes(v) for v in batch.views()] == batch.copies() == [b"to", b"be", b"", b"or"]
    assert address(batch[1].data) == address(batch.data) + 2
    assert address(next(log.read(4)).data) == address(batch[-1].data), "another reader sees the same memory"
    with pytest.raises(TypeError):
        batch.data[0] = 1
    with pytest.raises(IndexError):
        batch[4]
    assert [r.index for r in batch] == [1, 2, 3, 4] and batch[-1].index == 4


@pytest.mark.parametrize("length", [0, 1, 16, 300])
@pytest.mark.parametrize("count", [63, 64, 128, 300])
def test_views_of_records_of_equal_length_are_right(log: chiplog.Log, length: int, count: int) -> None:
    """Their views are cut by slices that are reused, also for other batches."""
    records = [os.urandom(length) for _ in range(count)]
    for _ in range(3):
        log.append_batch(records)
    log.append_batch([b"x" * (length + 1), *records])
    for batch in log.batches():
        wanted = batch.copies()
        assert wanted[-count:] == records
        assert [bytes(v) for v in batch.views()] == [bytes(v) for v in batch.views()] == wanted
        for n in (0, count - 1, 63 % count, 1, count // 2, 62):
            view = batch[n].data
            assert bytes(view) == wanted[n] and view.readonly and view.contiguous
            assert not length or address(view) == address(batch.data) + batch.offsets[n]
    assert [bytes(v) for v in log.read(7).views()] == list(log.read(7).copies()), "a batch that begins in the middle"


def test_a_compressed_batch_is_decompressed_once(log: chiplog.Log) -> None:
    log.append_batch([b"x" * 1000] * 10, codec="zstd")
    (batch,) = log.batches()
    assert batch.data.nbytes == 10_000 and batch[9].copy() == b"x" * 1000


def test_part_of_a_batch_begins_at_zero(log: chiplog.Log) -> None:
    log.append_batch([b"to", b"be", b"or", b"not"])
    (batch,) = log.batches(3)
    assert (batch.first, bytes(batch.data), list(batch.offsets)) == (3, b"ornot", [0, 2, 5])
    assert pa.array(batch).to_pylist() == [b"or", b"not"]


def test_a_view_outlives_log_reader_and_segment(tmp_path: Path) -> None:
    log = chiplog.Log(tmp_path, SMALL)
    log.append(b"the first")
    view = next(log.read()).data
    array = next(log.batches()).to_arrow()
    for _ in range(40):  # the segment is full, discarded, and its file is free to be used again
        log.append_batch([os.urandom(1 << 16)] * 2)
    log.discard(log.status().last_index)
    for _ in range(40):
        log.append(os.urandom(1 << 17))
    log.close()
    del log
    gc.collect()
    assert bytes(view) == b"the first" and array.to_pylist() == [b"the first"]


def test_numpy_accepts_a_batch_without_a_copy(log: chiplog.Log) -> None:
    log.append_batch([np.arange(n, n + 4, dtype="<i4").data for n in range(100)])
    (batch,) = log.batches()
    data, offsets = batch.to_numpy()
    assert data.ctypes.data == address(batch.data) and not data.flags.writeable and not data.flags.owndata
    assert (offsets == np.arange(101) * 16).all()
    assert (data.view("<i4").reshape(100, 4)[:, 0] == np.arange(100)).all()
    del batch
    gc.collect()
    assert data[:4].view("<i4")[0] == 0


def test_arrow_accepts_a_batch_without_a_copy(log: chiplog.Log) -> None:
    log.append_batch([b"to", b"be", b"", b"or"])
    (batch,) = log.batches()
    array = batch.to_arrow()
    assert array.type == pa.binary() and array.to_pylist() == [b"to", b"be", b"", b"or"] and array.null_count == 0
    array.validate(full=True)
    assert array.buffers()[2].address == address(batch.data)
    assert array.buffers()[1].address == address(batch.offsets)
    schema, values = batch.__arrow_c_array__()
    del schema, values  # unused capsules free their content
    assert batch.__arrow_c_schema__() is not None
    del batch
    gc.collect()
    assert array.slice(3).to_pylist() == [b"or"]
    assert pa.chunked_array([array, array]).combine_chunks().to_pylist()[-1] == b"or"


def test_a_large_copy_is_right(log: chiplog.Log) -> None:
    record = os.urandom(300_000)
    log.append(record)
    assert next(log.read()).copy() == next(log.read().copies()) == record


@pytest.mark.parametrize("mode", ["map", "read"])
def test_both_ways_to_read(tmp_path: Path, mode: str) -> None:
    with chiplog.Log(tmp_path, chiplog.Options(segment_bytes=1 << 20, read_mode=mode)) as log:  # type: ignore[arg-type]
        log.append_batch([b"%d" % n for n in range(1000)])
        assert [bytes(v) for v in log.read().views()] == [b"%d" % n for n in range(1000)]


def test_dropped_views_free_their_memory(log: chiplog.Log) -> None:
    """Makes and drops arrays, offsets and views of many batches: memory use does not grow with their number."""
    log.append_batch([b"x" * 100] * 5000, codec="zstd")

    def held() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def work(times: int) -> None:
        for _ in range(times):
            for batch in log.batches():
                assert len(batch.to_arrow()) == len(batch.views()) == 5000
        gc.collect()

    work(20)
    before = held()
    work(200)  # 100 MB and more of decompressed bodies and offsets
    assert held() - before < 50 << 20
