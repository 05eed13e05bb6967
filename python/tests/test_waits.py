"""Waits: the interpreter is released, signals are seen, another thread's close is too."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import chiplog
import pytest
from conftest import PATIENCE, SMALL

from servers import Servers

GENEROUS = 10.0
"""Seconds after a signal: far more than a wait takes to see it, far less than each of these would go on for."""
LOCAL = "log = chiplog.Log(sys.argv[1], chiplog.Options(segment_bytes=1 << 20)); log.append(b'x')"
REMOTE = "client = chiplog.Client([sys.argv[2]]); producer = client.producer()"
WAITS = {
    "tail": f"{LOCAL}; ready(); next(log.tail())",
    "tail views": f"{LOCAL}; ready(); next(log.tail().views())",
    "wait": f"{LOCAL}; ready(); log.tail().wait()",
    "wait_for": f"{LOCAL}; ready(); log.wait_for(1000)",
    "asyncio": f"{LOCAL}; ready(); asyncio.run(forever(log.tail()))",
    "remote tail": f"{REMOTE}; ready(); next(client.tail())",
    "watch": f"{REMOTE}; watch = client.watch(); next(watch); ready(); [None for _ in watch]",
    "connect": "ready(); chiplog.Client(['127.0.0.1:1'], chiplog.ClientOptions(timeout=1000))",
    "follower": "ready(); chiplog.Follower(sys.argv[1], ['127.0.0.1:1'], options=chiplog.FollowerOptions(open_timeout=1e3))",
    # No disk here waits for ever: the signal comes in one of many.
    "append": f"{LOCAL}; ready()\nwhile True: log.append(b'x')",
    "ticket": f"{LOCAL}; ready()\nwhile True: log.submit(b'x').wait()",
    "event": "f = chiplog.Follower(sys.argv[1], [sys.argv[2]]); ready()\nwhile True: f.next_event()",
}
STOPS = {
    "producer append": f"{REMOTE}; stopped(); ready(); producer.append(b'x')",
    "producer ticket": f"{REMOTE}; stopped(); ready(); producer.submit(b'x').wait()",
    "flush": f"{REMOTE}; stopped(); producer.send(b'x'); ready(); producer.flush(1000)",
}
"""What waits for servers that have stopped."""
PROGRAM = """
import asyncio, sys, time
import chiplog
def ready():
    print("ready", flush=True)
def stopped():
    print("made", flush=True)
    sys.stdin.readline()
async def forever(reader):
    async for record in reader:
        pass
try:
    {}
except KeyboardInterrupt:
    print("interrupted", time.monotonic(), flush=True)
"""


def interrupts(wait: str, body: str, dir: Path, server: str, stop: Callable[[], None] | None = None) -> None:
    """Ctrl-C ends what the program waits for; first it stops where the program says so."""
    command = [sys.executable, "-c", PROGRAM.format(body.replace("\n", "\n    ")), str(dir / "log"), server]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None and program.stdout is not None
        if stop is not None:
            assert program.stdout.readline() == "made\n"
            stop()
            print(file=program.stdin, flush=True)
        assert program.stdout.readline() == "ready\n"
        time.sleep(0.2)  # it waits by then, or comes to it after the signal: both end
        sent = time.monotonic()
        program.send_signal(signal.SIGINT)
        told = program.stdout.readline().split()
        program.wait(timeout=PATIENCE)
    assert told[:1] == ["interrupted"]
    took = float(told[1]) - sent
    print(f"{wait}: {took * 1000:.0f} ms after the signal")
    assert took < GENEROUS


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_every_wait(wait: str, tmp_path: Path, servers: Servers) -> None:
    interrupts(wait, WAITS[wait], tmp_path, servers.clients[0])


def test_ctrl_c_ends_waits_for_servers_that_have_stopped(tmp_path: Path) -> None:
    with Servers() as servers:

        def send(number: signal.Signals) -> None:
            for server in servers.running.values():
                server.send_signal(number)

        for wait, body in STOPS.items():
            try:
                interrupts(wait, body, tmp_path, servers.clients[0], lambda: send(signal.SIGSTOP))
            finally:
                send(signal.SIGCONT)
            servers.leader()


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, caught


def closes(thread: threading.Thread, caught: list[BaseException], close: Callable[[], object]) -> None:
    time.sleep(0.1)
    assert thread.is_alive()
    close()
    thread.join(PATIENCE)
    assert not thread.is_alive() and isinstance(caught[0], chiplog.ClosedError)


def test_close_wakes_whoever_waits(tmp_path: Path, servers: Servers) -> None:
    log = chiplog.Log(tmp_path / "log", SMALL)
    reader = log.tail()
    closes(*in_thread(lambda: next(reader)), reader.close)
    with pytest.raises(chiplog.ClosedError):
        next(reader)
    tail = log.tail()
    closes(*in_thread(lambda: next(tail)), log.close)

    client = chiplog.Client(servers.clients)
    remote = client.tail()
    closes(*in_thread(lambda: next(remote)), remote.close)

    follower = chiplog.Follower(tmp_path / "copy", servers.clients)
    follower.wait_for(client.info().last, PATIENCE)  # nothing more comes
    copied = follower.tail()
    closes(*in_thread(lambda: next(copied)), follower.close)


def test_other_threads_run_while_one_waits(log: chiplog.Log) -> None:
    thread, caught = in_thread(lambda: next(log.tail()))
    counted = 0
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        counted += 1
    assert counted > 1000 and thread.is_alive()
    log.append(b"x")
    thread.join(PATIENCE)
    assert not thread.is_alive() and not caught


def test_threads_share_a_reader(log: chiplog.Log) -> None:
    """Each record is given to one of them."""
    tail = log.tail(chiplog.Start.first())
    got: list[int] = []

    def work() -> None:
        for record in tail:
            got.append(record.index)

    threads = [in_thread(work) for _ in range(4)]
    for _ in range(50):
        log.append_batch([b"x"] * 7)
    end = time.monotonic() + PATIENCE
    while len(got) < 350 and time.monotonic() < end:
        time.sleep(0.01)
    tail.close()
    for thread, _ in threads:
        thread.join(PATIENCE)
    assert sorted(got) == list(range(1, 351))


def test_threads_append_together(log: chiplog.Log) -> None:
    def work() -> None:
        for _ in range(50):
            log.append(b"x")

    threads = [in_thread(work) for _ in range(8)]
    for thread, caught in threads:
        thread.join(PATIENCE)
        assert not caught
    assert log.info().last == 400


def test_a_forked_child_leaves_its_parent_alone(tmp_path: Path, servers: Servers) -> None:
    program = """
import gc, os, sys
import chiplog
log = chiplog.Log(sys.argv[1] + "/log", chiplog.Options(segment_bytes=1 << 20))
log.append(b"x")
ticket, reader, session = log.submit(b"y"), log.tail(1), log.session()
viewer = chiplog.Viewer(sys.argv[1] + "/log")
client = chiplog.Client([sys.argv[2]])
producer, remote = client.producer(), client.read()
follower = chiplog.Follower(sys.argv[1] + "/copy", [sys.argv[2]])
copied = follower.read()
child = os.fork()
if child == 0:
    refused = [
        lambda: log.append(b"z"), lambda: log.read(), ticket.wait, lambda: next(reader), lambda: session.append(b"z"),
        lambda: viewer.get(1), client.info, lambda: producer.send(b"z"), lambda: next(remote),
        follower.status, lambda: next(copied), log.close, follower.close, producer.close,
    ]
    for n, call in enumerate(refused):
        try:
            call()
            os._exit(100 + n)
        except chiplog.ForkedError:
            pass
    del log, ticket, reader, session, viewer, client, producer, remote, follower, copied, refused, call
    gc.collect()  # drops them all
    with chiplog.Log(sys.argv[1] + "/own", chiplog.Options(segment_bytes=1 << 20)) as own:
        own.append(b"a log of the child")
    os._exit(0 if chiplog.Client([sys.argv[2]]).info().node else 99)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, os.waitstatus_to_exitcode(status)
log.append(b"the parent goes on")
producer.append(b"the parent goes on")
follower.wait_for(client.info().last, 60)
assert viewer.tail(1).wait(60)
print("well")
"""
    command = [sys.executable, "-c", program, str(tmp_path), servers.clients[0]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE)
    assert done.stdout == "well\n", done.stderr


def test_a_signal_does_not_end_what_it_does_not_raise_in(log: chiplog.Log) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        threading.Timer(0.3, lambda: log.append(b"x")).start()
        assert next(log.tail()).copy() == b"x" and seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)
