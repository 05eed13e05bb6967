"""Callbacks of tickets: each is called once, on its thread, and its actions do no harm."""

import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import chiplog
import pytest
from conftest import PATIENCE

from servers import Servers


class Calls:
    """Records the arguments and threads of callbacks."""

    def __init__(self) -> None:
        self.got: list[tuple[int, int]] = []
        self.changed = threading.Condition()

    def __call__(self, ticket: chiplog.Ticket) -> None:
        with self.changed:
            self.got.append((ticket.wait(), threading.get_ident()))
            self.changed.notify_all()

    def wait_for(self, count: int) -> list[int]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.got) >= count, PATIENCE)
            return [index for index, _ in self.got]


def test_each_is_called_once_on_one_thread(log: chiplog.Log) -> None:
    calls = Calls()
    tickets = [log.submit(b"x") for _ in range(200)]
    for ticket in tickets:
        ticket.add_done_callback(calls)
    assert sorted(calls.wait_for(200)) == list(range(1, 201))
    log.submit_barrier().add_done_callback(calls)
    assert calls.wait_for(201)[-1] == 200
    elsewhere = {thread for _, thread in calls.got} - {threading.get_ident()}
    assert len(elsewhere) <= 1
    with pytest.raises(TypeError):
        tickets[0].add_done_callback(None)  # type: ignore[arg-type]


def test_a_completed_ticket_calls_at_once_on_this_thread(log: chiplog.Log) -> None:
    ticket, calls = log.submit(b"x"), Calls()
    ticket.wait()
    ticket.add_done_callback(calls)
    ticket.add_done_callback(calls)
    assert calls.got == [(1, threading.get_ident())] * 2

    def stops(_: chiplog.Ticket) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ticket.add_done_callback(stops)


def test_a_callback_may_append_and_wait(log: chiplog.Log) -> None:
    calls = Calls()

    def appends(ticket: chiplog.Ticket) -> None:
        log.append(b"behind %d" % ticket.wait())
        log.submit(b"and one more").add_done_callback(calls)

    log.submit(b"x").add_done_callback(appends)
    assert calls.wait_for(1) == [3]


def test_a_callback_may_call_the_servers_any_number_of_times(client: chiplog.Client) -> None:
    """Each call used the budget that tokio gives to one poll of a task: the 43rd never returned."""
    asked = threading.Event()

    def asks(_: chiplog.Ticket) -> None:
        for _count in range(300):
            client.info()
        asked.set()

    with client.producer() as producer:
        producer.submit(b"x").add_done_callback(asks)
        assert asked.wait(PATIENCE)


def test_an_exception_goes_to_the_unraisable_hook(log: chiplog.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    told: queue.Queue[Any] = queue.Queue()
    monkeypatch.setattr(sys, "unraisablehook", told.put)
    calls = Calls()

    def fails(_: chiplog.Ticket) -> None:
        raise ValueError("of the callback")

    ticket = log.submit(b"x")
    ticket.add_done_callback(fails)
    ticket.add_done_callback(calls)
    calls.wait_for(1)
    ticket.add_done_callback(fails)  # completed: on this thread
    both = [told.get(timeout=PATIENCE) for _ in range(2)]  # the first can still be on its way, from another thread
    assert [str(one.exc_value) for one in both] == ["of the callback"] * 2 and both[0].object is fails
    assert told.empty()


def test_a_slow_callback_does_not_delay_the_log(log: chiplog.Log) -> None:
    held, go = threading.Event(), threading.Event()

    def holds(_: chiplog.Ticket) -> None:
        held.set()
        go.wait(PATIENCE)

    log.append(b"x")
    for _ in range(1000):  # until one is not completed yet when its callback is added
        threading.Thread(target=lambda: log.submit(b"y").add_done_callback(holds), daemon=True).start()
        if held.wait(0.01):
            break
    for _ in range(20):
        log.append(b"z")
    go.set()


def test_tickets_of_a_producer_have_callbacks(servers: Servers, client: chiplog.Client) -> None:
    calls = Calls()
    with client.producer() as producer:
        begin = client.info().last + 1
        for n in range(100):
            producer.submit(b"%d" % n).add_done_callback(calls)
        producer.submit_batch([b"a", b"b"]).add_done_callback(calls)
        assert sorted(calls.wait_for(101)) == list(range(begin, begin + 101))  # their order is unspecified


PROGRAM = """
import os, sys, time
import chiplog
log = chiplog.Log(sys.argv[1], chiplog.Options(segment_bytes=1 << 20))
def told(ticket):
    print("told", ticket.wait(), flush=True)
{}
"""
ENDS = {
    "at the end": ("""
for _ in range(3):
    log.submit(b"x").add_done_callback(told)
log.close()
""", "told 1\ntold 2\ntold 3\n"),
    "one that runs": ("""
import threading
begun = threading.Event()
def slow(ticket):
    begun.set()
    time.sleep(0.3)
    print("over", flush=True)
log.submit(b"x").add_done_callback(slow)
assert begun.wait(60)
""", "over\n"),
    "in a child": ("""
import threading
begun = threading.Event()
def waits(ticket):
    begun.set()
    time.sleep(0.5)
    print("of the parent", flush=True)
log.submit(b"x").add_done_callback(waits)
ticket = log.submit(b"y")
child = os.fork()
if child == 0:
    try:
        ticket.add_done_callback(told)
    except chiplog.ForkedError:
        print("refused", flush=True)
    with chiplog.Log(sys.argv[1] + "-own", chiplog.Options(segment_bytes=1 << 20)) as own:
        own.submit(b"z").add_done_callback(told)
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
assert begun.wait(60)
""", "refused\ntold 1\nof the parent\n"),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_the_program(end: str, tmp_path: Path) -> None:
    body, wanted = ENDS[end]
    command = [sys.executable, "-c", PROGRAM.format(body), str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, sorted(wanted.splitlines())), done.stderr
