"""Producers that are not closed: their records are sent, and the number of unacknowledged ones is reported."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import chiplog
import pytest
from conftest import PATIENCE

from servers import Servers


class Alone(Servers):
    """One server that can be stopped for a while: then it acknowledges nothing."""

    def __enter__(self) -> Self:
        self.start(1)
        self.command("member", "init", self.clients[0])
        return self

    @contextmanager
    def stopped(self) -> Iterator[None]:
        pid = self.running[1].pid
        os.kill(pid, signal.SIGSTOP)
        while any(stat.read_text().rpartition(") ")[2][0] != "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
            time.sleep(0.001)  # its threads stop one by one
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def alone() -> Iterator[Alone]:
    with Alone() as alone:
        yield alone


@pytest.fixture
def its_client(alone: Alone) -> chiplog.Client:
    return chiplog.Client(alone.clients[:1])


PROGRAM = """
import asyncio, gc, multiprocessing, os, signal, sys, threading, time
import chiplog
client = chiplog.Client(sys.argv[1:2])
def stop():  # the server acknowledges nothing from now on
    print("stop", flush=True)
    sys.stdin.readline()
def producer(**given):
    made = client.producer(chiplog.ProducerOptions(**given))
    made.append(b"in")
    return made
{}
"""


def run(alone: Alone, body: str, *, interrupt_at: str = "") -> tuple[str, int]:
    """Runs a program. Returns its stderr and the number of records in the log. The server stops on its request."""
    client = chiplog.Client(alone.clients[:1])
    before = client.info().last
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", PROGRAM.format(body), alone.clients[0]]
    program = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdin and program.stdout and program.stderr
    try:
        said = ""
        if program.stdout.readline() == "stop\n":
            with alone.stopped():
                program.stdin.write("go on\n")
                program.stdin.flush()
                while interrupt_at and interrupt_at not in said:
                    said += program.stderr.readline()
                if interrupt_at:
                    program.send_signal(signal.SIGINT)
                said += program.communicate(timeout=PATIENCE)[1]
        else:
            said += program.communicate(timeout=PATIENCE)[1]
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 0, said
    return said, client.info().last - before


LINGERS = "p = client.producer(chiplog.ProducerOptions(linger=60))"
AT_THE_END = "of a producer that was not closed were not acknowledged within 0.2 s of the program's end"


def test_records_in_flight_at_exit_are_sent(alone: Alone) -> None:
    said, records = run(alone, f"{LINGERS}\nfor _ in range(1000): p.send(b'x')")
    assert records == 1000
    assert "ResourceWarning: the program ends with a producer that was not closed, with 1000 records that are not" in said
    assert "chiplog:" not in said, "no record was left"
    said, records = run(alone, "p = producer()\np.send(b'x')\np.flush()")
    assert (said, records) == ("", 2)


LEFT = {
    "p = producer(exit_timeout=0.2)\nstop()\nfor _ in range(7): p.send(b'x')": 7,
    "p = producer(exit_timeout=0.2)\nstop()\nkept = [p.submit(b'x'), p.submit(b'y')]\np.submit_batch([b'1', b'2'])": 4,
    # Two producers, one of which was dropped just before.
    "p = producer(exit_timeout=0.2)\nq = producer(exit_timeout=0.2)\nstop()\np.send(b'x')\nq.send(b'y')\ndel p": 1,
    # A loop that was closed before.
    "async def work(p):\n    p.send(b'x')\n    asyncio.ensure_future(p.append_async(b'y'))\n    await asyncio.sleep(0)\n"
    "p = producer(exit_timeout=0.2)\nstop()\nasyncio.run(work(p))": 2,
    # A thread that still sends, and waits for space.
    "p = producer(exit_timeout=0.2, buffer_bytes=1)\nstop()\np.send(b'x')\n"
    "threading.Thread(target=lambda: p.send(b'y'), daemon=True).start()\ntime.sleep(0.1)": 1,
    # Records that failed before, with only one of their tickets waited for.
    "p = producer(exit_timeout=0.2, delivery_timeout=1.5)\nstop()\nkept = [p.submit(b'x') for _ in range(5)]\n"
    "while not all(t.done() for t in kept) or p.buffered_bytes: time.sleep(0.01)\n"
    "try:\n    kept[0].wait()\nexcept chiplog.TimeoutError:\n    assert p.unacknowledged == 4\n": 4,
    # A record that failed before, without a report.
    "p = producer(exit_timeout=0.2, delivery_timeout=1.5)\nstop()\np.send(b'x')\n"
    "while p.buffered_bytes: time.sleep(0.01)\nassert p.unacknowledged == 1": 1,
}


@pytest.mark.parametrize("body, count", LEFT.items(), ids=range(len(LEFT)))
def test_unacknowledged_records_at_exit_are_reported(alone: Alone, body: str, count: int) -> None:
    said, _ = run(alone, body)
    assert f"chiplog: {count} record(s) {AT_THE_END}" in said, said
    assert f"ResourceWarning: {count} record(s) {AT_THE_END}" in said


def test_ctrl_c_ends_the_wait_at_exit(alone: Alone) -> None:
    body = (
        "signal.signal(signal.SIGINT, signal.default_int_handler)\np = producer(exit_timeout=1000)\nstop()\np.send(b'x')"
    )
    said, _ = run(alone, body, interrupt_at="ResourceWarning: the program ends")
    assert "chiplog: 1 record(s) of a producer that was not closed were not acknowledged before Ctrl-C" in said
    assert "KeyboardInterrupt" in said


def test_a_closed_producer_is_not_reported_again(alone: Alone) -> None:
    body = (
        "p = producer()\nstop()\np.send(b'x')\ntry:\n    p.close(0.1)\nexcept chiplog.TimeoutError as error:\n"
        "    assert len(error.closed.left) == 1\nelse:\n    sys.exit(9)"
    )
    assert run(alone, body)[0] == ""


def test_records_of_a_dropped_producer_are_sent(alone: Alone) -> None:
    said, records = run(alone, f"{LINGERS}\np.send(b'x')\ndel p")
    assert records == 1 and "chiplog:" not in said
    assert "ResourceWarning: a producer was dropped without close(), with 1 record that is not acknowledged" in said


def test_records_left_by_a_dropped_producer_are_reported(alone: Alone) -> None:
    body = (
        "p = producer(delivery_timeout=1.5)\nstop()\np.send(b'x')\np.send(b'y')\ndel p\n"
        "import chiplog._close_flag as ending\ntold, ending.print_and_warn = [], lambda text: told.append(text)\n"
        "end = time.monotonic() + 60\n"
        "while not told:\n    assert time.monotonic() < end\n    time.sleep(0.01)\n"
        "assert told[0].startswith('2 record(s) of a producer that was dropped were not acknowledged'), told\n"
    )
    assert "chiplog:" not in run(alone, body)[0]


def test_a_child_does_not_report_its_parents_producers(alone: Alone) -> None:
    body = (
        "p = producer(exit_timeout=0.2)\nstop()\np.send(b'x')\nchild = os.fork()\nif child == 0:\n    begun = time.monotonic()\n"
        "    del p\n    gc.collect()\n    sys.exit()\nassert os.waitpid(child, 0)[1] == 0"
    )
    said, _ = run(alone, body)
    assert said.count("chiplog:") == 1 and f"chiplog: 1 record(s) {AT_THE_END}" in said


def test_a_child_of_multiprocessing_sends_its_records(alone: Alone) -> None:
    body = (
        "def work():\n    global p\n    client = chiplog.Client(sys.argv[1:2])\n"
        "    p = client.producer(chiplog.ProducerOptions(linger=60))\n    p.send(b'x')\n"
        "child = multiprocessing.get_context('fork').Process(target=work)\nchild.start()\nchild.join()\n"
        "assert child.exitcode == 0"
    )
    said, records = run(alone, body)
    assert records == 1 and said.count("the program ends with a producer that was not closed, with 1 record") == 1


def test_closing_raises_with_the_records_left(alone: Alone, its_client: chiplog.Client) -> None:
    def given() -> chiplog.Producer:
        producer = its_client.producer()
        producer.append(b"in")
        return producer

    async def close_async(producer: chiplog.Producer) -> None:
        await producer.close_async(0.1)

    closes: list[Callable[[chiplog.Producer], object]] = [
        lambda p: p.close(0.1), lambda p: asyncio.run(close_async(p))
    ]
    for close in closes:
        producer = given()
        with alone.stopped():
            producer.send(b"a")
            producer.send(b"b")
            for _ in range(2):
                with pytest.raises(chiplog.TimeoutError, match=r"2 record\(s\) of the producer were not ack") as error:
                    close(producer)
                closed = error.value.closed
                assert closed is not None and not closed.all_acknowledged
                assert [left.record for left in closed.left] == [b"a", b"b"]
                assert pickle.loads(pickle.dumps(closed)).left == closed.left
        assert producer.unacknowledged == 0, "it was reported"
    assert chiplog.TimeoutError("of another call").closed is None


def test_the_exception_of_a_block_has_a_note_of_the_records_left(
    alone: Alone, its_client: chiplog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chiplog._close_flag.print_and_warn", lambda text: told.append(text))
    monkeypatch.setattr("chiplog._close_flag.warn", lambda text: warned.append(text))
    told: list[str] = []
    warned: list[str] = []
    for kind, tells in [(KeyError, 0), (SystemExit, 1)]:
        producer = its_client.producer(chiplog.ProducerOptions(delivery_timeout=1.5))
        producer.append(b"in")
        with alone.stopped():
            with pytest.raises(kind) as error:
                with producer:
                    producer.send(b"a")
                    raise kind("of the block")
        (note,) = error.value.__notes__
        assert note.startswith("1 record(s) of the producer were not acknowledged") and len(told) == tells
    assert "whose block was left" in told[0]
    assert len(warned) == 1 and warned[0].startswith("1 record(s) of a producer whose block was left were not ack")


class Unnoted(Exception):
    """An exception that accepts no notes."""

    def add_note(self, note: str, /) -> None:
        raise ValueError("planted")


def test_a_block_whose_exception_is_swallowed_warns(alone: Alone, its_client: chiplog.Client) -> None:
    """The note was lost with the exception, and an exception that accepts no notes was replaced."""

    async def leave(producer: chiplog.Producer, error: Exception) -> None:
        async with producer:
            await asyncio.sleep(0)
            raise error

    def leave_here(producer: chiplog.Producer, error: Exception) -> None:
        with producer:
            raise error

    ways: list[Callable[[chiplog.Producer, Exception], object]] = [
        leave_here, lambda producer, error: asyncio.run(leave(producer, error))
    ]
    for leaves in ways:
        for error in (KeyError("of the block"), Unnoted("of the block")):
            producer = its_client.producer(chiplog.ProducerOptions(delivery_timeout=1.5))
            producer.append(b"in")
            with alone.stopped():
                producer.send(b"a")
                ticket = producer.submit(b"b")
                with (
                    pytest.warns(ResourceWarning, match=r"^2 record\(s\) of a producer whose block was left were not ack"),
                    silenced(),
                    pytest.raises(type(error), match="of the block"),
                ):
                    leaves(producer, error)
            with pytest.raises(chiplog.Error):
                ticket.wait(0)


@contextmanager
def silenced() -> Iterator[None]:
    """Ignores exceptions that cannot be raised."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = before


def test_notices_while_sending_at_exit_are_logged(alone: Alone) -> None:
    """Logging had ended before."""
    body = (
        "import logging\nlogging.basicConfig(level=logging.WARNING, format='logged %(message)s')\n"
        "options = chiplog.ProducerOptions(session=(client.open_session(), 1), delivery_timeout=1)\n"
        "p = client.producer(options)\nstop()\np.submit_batch([b'x'])"
    )
    said, _ = run(alone, body)
    assert "logged a producer failed" in said and "chiplog: 1 record(s) of a producer" in said, said


def test_a_dropped_ticket_reports_no_failure(alone: Alone, its_client: chiplog.Client) -> None:
    producer = its_client.producer(chiplog.ProducerOptions(delivery_timeout=1.5))
    producer.append(b"in")
    with alone.stopped():
        kept = producer.submit(b"a")
        producer.submit(b"b")
        assert producer.unacknowledged == 2
        with pytest.raises(chiplog.TimeoutError):
            kept.wait(PATIENCE)
        end = time.monotonic() + PATIENCE
        while producer.buffered_bytes:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert producer.unacknowledged == 1
    with pytest.raises(chiplog.TimeoutError) as error:
        producer.close()
    assert error.value.closed is not None and error.value.closed.untold == 1


def test_a_ticket_without_a_wait_reports_no_failure(alone: Alone, its_client: chiplog.Client) -> None:
    """A ticket that was kept, or only polled with done(), counted as waited for."""
    producer = its_client.producer(chiplog.ProducerOptions(delivery_timeout=1.5))
    producer.append(b"in")
    called: list[chiplog.Ticket] = []
    with alone.stopped():
        tickets = [producer.submit(b"%d" % n) for n in range(4)]
        tickets[1].add_done_callback(called.append)
        end = time.monotonic() + PATIENCE
        while not (all(ticket.done() for ticket in tickets) and called) or producer.buffered_bytes:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert producer.unacknowledged == 4

        async def ask() -> None:
            with pytest.raises(chiplog.TimeoutError):
                await tickets[2]

        asyncio.run(ask())
        assert producer.unacknowledged == 3
        with pytest.raises(chiplog.TimeoutError):
            tickets[3].wait()
        assert producer.unacknowledged == 2
        del tickets[0]
        assert producer.unacknowledged == 2
    with pytest.raises(chiplog.TimeoutError) as error:
        producer.close()
    assert error.value.closed is not None and error.value.closed.untold == 2
