"""Prefetching on another thread: batches arrive in order, and the thread ends with its reader."""

import asyncio
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import chiplog
import pytest

RECORD, BATCH, BATCHES = 2048, 128, 96
COUNT = BATCH * BATCHES
"""24 MiB: a reader prefetches from 2 MiB on, up to three times 2 MiB."""


def record(index: int) -> bytes:
    return index.to_bytes(8, "little") * (RECORD // 8)


def fill(log: chiplog.Log, batches: int = BATCHES) -> None:
    first = log.status().last_index + 1
    starts = range(first, first + batches * BATCH, BATCH)
    tickets = [log.submit_batch([record(n) for n in range(start, start + BATCH)]) for start in starts]
    tickets[-1].wait()


def threads() -> int:
    """Returns the number of prefetching threads in this process."""
    count = 0
    for name in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # the thread has ended meanwhile
            count += name.read_text() == "chiplog-prefetc\n"  # the kernel keeps 15 characters
    return count


def wait_until_none_reads_ahead() -> None:
    end = time.monotonic() + 30
    while threads():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[chiplog.Log]:
    with chiplog.Log(tmp_path / "log", chiplog.Options(segment_bytes=8 << 20)) as log:
        fill(log)
        yield log


def test_every_record_arrives_once_and_in_order(full: chiplog.Log) -> None:
    reader = full.read()
    for n, view in enumerate(reader.views(), 1):
        assert view == record(n)
        assert reader.position == n + 1
        if n == 2000:
            assert threads() == 1
    assert n == COUNT
    fill(full)  # at the end it continues, and prefetches again
    assert [r.index for r in reader] == list(range(COUNT + 1, 2 * COUNT + 1))
    wait_until_none_reads_ahead()


def test_a_short_read_needs_no_thread(full: chiplog.Log) -> None:
    reader = full.read()
    for _, _ in zip(range(512), reader, strict=False):
        pass
    assert threads() == 0


def test_a_prefetching_reader_seeks(full: chiplog.Log) -> None:
    reader = full.read()
    places = [5, 20 * BATCH, COUNT, 3, 50 * BATCH + 7, COUNT // 2]
    for place in places:
        reader.seek(place)
        for n in range(place, min(place + 20 * BATCH, COUNT + 1)):
            assert next(reader).index == n
    at = reader.position
    with pytest.raises(chiplog.OutOfRangeError):
        reader.seek(10 * COUNT)
    assert reader.position == at and next(reader).index == at


def test_damage_is_raised_in_order(tmp_path: Path) -> None:
    dir = tmp_path / "log"
    with chiplog.Log(dir, chiplog.Options(segment_bytes=64 << 20)) as log:
        fill(log)
        bad = 60 * BATCH + 1
        segment = min(dir.glob("*.seg"))
        at = segment.read_bytes().index(record(bad))
        with open(segment, "r+b") as file:
            file.seek(at + 100)
            file.write(b"\xff")
        reader = log.read()
        seen = 0
        for _ in range(3):
            with pytest.raises(chiplog.CorruptError):
                for r in reader:
                    seen += 1
                    assert r.index == seen and r.data == record(seen)
            assert seen == bad - 1 and reader.position == bad
        reader.seek(bad + BATCH)
        assert [r.index for r in reader] == list(range(bad + BATCH, COUNT + 1))


def test_a_discard_during_prefetch_is_raised(full: chiplog.Log) -> None:
    reader = full.read()
    for n in range(1, 20 * BATCH):
        assert next(reader).index == n
    full.discard(COUNT - 10)
    with pytest.raises(chiplog.DiscardedError):
        for n, r in enumerate(reader, n + 1):
            assert r.index == n and r.data == record(n)
    assert n < COUNT - 10
    assert next(full.read()).index == COUNT - 10


def test_close_while_prefetching(full: chiplog.Log) -> None:
    for _ in range(20):
        reader = full.read()
        batches = iter(reader.batches())
        for _ in range(12):
            next(batches)
        reader.close()
        with pytest.raises(chiplog.ClosedError):
            next(batches)
    wait_until_none_reads_ahead()
    readers = [full.read() for _ in range(4)]
    for reader in readers:
        for _ in range(1500):
            next(reader)
    assert threads() == 4
    del reader, readers
    wait_until_none_reads_ahead()


def test_many_threads_share_a_prefetching_reader(full: chiplog.Log) -> None:
    reader = full.read()
    seen: list[list[int]] = [[] for _ in range(4)]

    def read(mine: list[int]) -> None:
        for r in reader:
            assert r.data == record(r.index)
            mine.append(r.index)

    workers = [threading.Thread(target=read, args=(mine,)) for mine in seen]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(mine == sorted(mine) for mine in seen)
    assert sorted(sum(seen, [])) == list(range(1, COUNT + 1))


def test_async_for_prefetches_and_waits(full: chiplog.Log) -> None:
    async def main() -> None:
        n = 0
        async for r in full.tail(1):
            n += 1
            assert r.index == n
            if n == COUNT:
                fill(full, 12)
            if n == COUNT + 12 * BATCH:
                return

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_fork_while_prefetching(full: chiplog.Log) -> None:
    reader = full.read()
    for _ in range(1500):
        next(reader)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            list(reader)  # the current batch is still readable
        except chiplog.ForkedError:
            reader.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert [r.index for r in reader] == list(range(1501, COUNT + 1))


class Stop(Exception):
    pass


def test_a_signal_ends_a_loop_in_c(full: chiplog.Log) -> None:
    # list() and similar loops check no signals: they continued to the end of the log.
    def stop(_signal: int, _frame: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    end = time.monotonic() + 60
    try:
        while True:
            assert time.monotonic() < end
            reader = full.read()
            with suppress(Stop):
                signal.setitimer(signal.ITIMER_REAL, 0.002)
                deque(reader, maxlen=0)
                signal.setitimer(signal.ITIMER_REAL, 0)
            position = reader.position
            assert position is not None
            if 1 < position <= COUNT:
                return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
