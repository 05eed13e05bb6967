"""Iterables of records: read only up to the limit of a batch; Ctrl-C interrupts reading them."""

import itertools
import mmap
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import chiplog
import pytest
from conftest import PATIENCE


class Counted:
    """An endless iterator of records that counts those taken."""

    def __init__(self, record: bytes) -> None:
        self.record, self.taken = record, 0

    def __iter__(self) -> Iterator[bytes]:
        for self.taken in itertools.count(1):
            yield self.record


def calls(log: chiplog.Log, client: chiplog.Client) -> dict[str, Callable[[Iterable[Any]], object]]:
    session, producer = log.session(), client.producer()
    return {
        "option batch_bytes_max allows 100000 bytes": log.append_batch,
        "option batch_bytes_max allows 100000": log.submit_batch,
        "option batch_bytes_max allows": log.try_submit_batch,
        "option batch_bytes_max": session.append_batch,
        "option batch_bytes_ma": session.submit_batch,
        "option batch_bytes_m": session.try_submit_batch,
        "option batch_bytes of the producer, or the limit of the servers, allows 262144 bytes": producer.submit_batch,
    }


def test_an_iterable_is_read_up_to_the_batch_limit(tmp_path: Path, client: chiplog.Client) -> None:
    options = chiplog.Options(segment_bytes=1 << 20, batch_bytes_max=100_000, record_bytes_max=99_000)
    with chiplog.Log(tmp_path, options) as log:
        for limit, call in calls(log, client).items():
            most = 262_144 if "producer" in limit else 100_000
            records = Counted(bytes(996))
            with pytest.raises(chiplog.TooLargeError, match=f"{limit}.*as several batches"):
                call(records)
            assert records.taken == (most - 40) // 1000 + 1
        # As many as fit, and not one more.
        assert len(log.append_batch([bytes(996)] * 99 + [bytes(956)])) == 100
        with pytest.raises(chiplog.TooLargeError):
            log.append_batch([bytes(996)] * 99 + [bytes(957)])
        for record in (b"", b"x"):
            with pytest.raises(chiplog.TooLargeError):
                log.append_batch(itertools.repeat(record))
        assert log.status().last_index == 100


def test_endless_servers_are_refused(tmp_path: Path) -> None:
    servers = (f"host-{n}:1" for n in itertools.count())
    with pytest.raises(chiplog.InvalidArgumentError, match="more than 1024 servers"):
        chiplog.Client(servers)
    assert next(servers) == "host-1025:1"
    with pytest.raises(chiplog.InvalidArgumentError, match="more than 1024 servers"):
        chiplog.Follower(tmp_path, servers)


def test_a_buffer_over_the_limit_is_not_copied(log: chiplog.Log) -> None:
    calls: list[Callable[[Any], object]] = [log.append, log.submit, lambda record: log.append_batch([record])]
    with mmap.mmap(-1, (1 << 28) + 1, access=mmap.ACCESS_READ) as huge:
        for call in calls:
            with pytest.raises(chiplog.TooLargeError, match="a record of 268435457 bytes; no log takes more"):
                call(huge)


PROGRAM = """
import itertools, signal, sys
import chiplog
signal.signal(signal.SIGINT, signal.default_int_handler)
log = chiplog.Log(sys.argv[1], chiplog.Options(segment_bytes=1 << 30))
class Slow:  # its iterator is written in C and checks no signals
    def __iter__(self):
        print("reading", flush=True)
        return itertools.filterfalse(bool, itertools.repeat(b""))
count = itertools.count()
try:
    while True:
        try:
            log.append_batch(Slow())
        except chiplog.TooLargeError:
            next(count)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_interrupts_reading_an_iterable(tmp_path: Path) -> None:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert program.stdout
    try:
        assert program.stdout.readline() == "reading\n"
        program.send_signal(signal.SIGINT)
        assert "interrupted" in program.communicate(timeout=PATIENCE)[0]
    finally:
        program.kill()
        program.wait()
