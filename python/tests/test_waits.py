"""Waits: the interpreter is released; signals and a close by another thread end them."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import chiplog
import pytest
from conftest import PATIENCE, SMALL

from servers import Servers

GENEROUS = 10.0
"""Seconds after a signal: far more than a wait needs to notice it, far less than each of these would last."""
LOCAL = "log = chiplog.Log(sys.argv[1], chiplog.Options(segment_bytes=1 << 20)); log.append(b'x')"
REMOTE = "client = chiplog.Client([sys.argv[2]]); producer = client.producer()"
ALONE = (
    "log = chiplog.Log(sys.argv[1], chiplog.Options(segment_bytes=1 << 20, queue_appends_max=1, session_window=1));"
    "session = log.session()"
)
NAMED = (
    "logs = chiplog.Logs(sys.argv[1], groups=1, options=chiplog.Options(segment_bytes=1 << 20, sessions_max=16));"
    "log = logs.create('a')"
)
WAITS = {
    "append": f"{ALONE}; hold(); log.append(b'x')",
    "submit": f"{ALONE}; hold()\nwhile True: log.submit(b'x')",
    "session append": f"{ALONE}; hold(); session.append(b'x')",
    "session append_batch": f"{ALONE}; hold(); session.append_batch([b'x'])",
    "session window": f"{ALONE}; hold(); session.submit(b'x'); session.append(b'y')",
    "session submit": f"{ALONE}; hold(); session.submit(b'x'); session.submit(b'y')",
    "session submit_batch": f"{ALONE}; hold(); session.submit(b'x'); session.submit_batch([b'y'])",
    "session queue": f"{ALONE}; hold(); log.submit(b'x'); session.append(b'y')",
    "session close": f"{ALONE}; hold(); session.submit(b'x'); session.close()",
    "create": f"{NAMED}; hold(); logs.create('b')",
    "delete": f"{NAMED}; hold(); logs.delete('a')",
    "append_together": f"{NAMED}; hold(); logs.append_together([(log, [b'x'])])",
    "tail": f"{LOCAL}; ready(); next(log.tail())",
    "tail views": f"{LOCAL}; ready(); next(log.tail().views())",
    "wait": f"{LOCAL}; ready(); log.tail().wait()",
    "wait_for": f"{LOCAL}; ready(); log.wait_for(1000)",
    "asyncio": f"{LOCAL}; ready(); asyncio.run(forever(log.tail()))",
    "remote tail": f"{REMOTE}; ready(); next(client.tail())",
    "watch": f"{REMOTE}; watch = client.watch(); next(watch); ready(); [None for _ in watch]",
    "connect": "ready(); chiplog.Client(['127.0.0.1:1'], chiplog.ClientOptions(timeout=1000))",
    "follower": "ready(); chiplog.Follower(sys.argv[1], ['127.0.0.1:1'], options=chiplog.FollowerOptions(open_timeout=1e3))",
    "ticket": f"{ALONE}; hold(); log.submit(b'x').wait()",
    "event": "f = chiplog.Follower(sys.argv[1], [sys.argv[2]]); ready()\nwhile True: f.next_event()",
}
STOPS = {
    "producer append": f"{REMOTE}; stopped(); ready(); producer.append(b'x')",
    "producer ticket": f"{REMOTE}; stopped(); ready(); producer.submit(b'x').wait()",
    "flush": f"{REMOTE}; stopped(); producer.send(b'x'); ready(); producer.flush(1000)",
}
"""Calls that wait for stopped servers."""
PROGRAM = """
import asyncio, os, signal, sys, time
import chiplog
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that a shell runs in the background would ignore it
def ready():
    print("ready", flush=True)
def hold():
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{{thread}}/comm") as name:
                is_writer = name.read() == "chiplog-writer\\n"
        except OSError:
            continue  # the thread has ended meanwhile
        if is_writer:
            print("hold", thread, flush=True)
            sys.stdin.readline()
    ready()
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


class Held:
    """Stops a thread of another process, as a hanging disk would."""

    ATTACH, DETACH, WALL = 16, 17, 0x40000000

    def __init__(self, thread: int) -> None:
        self.thread = thread
        if not self.trace(self.ATTACH):
            pytest.skip(f"a thread cannot be held here: ptrace: {os.strerror(ctypes.get_errno())}")
        os.waitpid(thread, self.WALL)

    def trace(self, request: int) -> bool:
        ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        ptrace.restype = ctypes.c_long
        return bool(ptrace(request, self.thread, None, None) == 0)

    def let_go(self) -> None:
        self.trace(self.DETACH)


class Program:
    """A Python program that prints when it is ready. On its request, stops its log's writer or calls `stop`."""

    def __init__(self, body: str, *args: str, stop: Callable[[], None] | None = None) -> None:
        command = [sys.executable, "-c", PROGRAM.format(body.replace("\n", "\n    ")), *args]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.held: list[Held] = []
        self.stop = stop

    def __enter__(self) -> Self:
        assert self.process.stdin is not None
        while (said := self.line()) != ["ready"]:
            if said == ["made"] and self.stop is not None:
                self.stop()
            else:
                assert said[:1] == ["hold"], said
                self.held.append(Held(int(said[1])))
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        return self

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def end(self) -> None:
        """Waits until it ends."""
        while self.held:
            self.held.pop().let_go()
        self.process.wait(timeout=PATIENCE)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.end()


def interrupts(wait: str, body: str, dir: Path, server: str, stop: Callable[[], None] | None = None) -> None:
    """Ctrl-C ends the program's wait."""
    with Program(body, str(dir / "log"), server, stop=stop) as program:
        time.sleep(0.2)  # by then it waits, or will wait after the signal: both end
        sent = time.monotonic()
        program.process.send_signal(signal.SIGINT)
        told = program.line()
        program.end()
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


def test_a_session_keeps_time_outs_while_the_disk_hangs(tmp_path: Path) -> None:
    body = f"""{ALONE}; hold()
calls = [
    lambda: session.append(b'x', timeout=0.1),
    lambda: session.append(b'y', timeout=0.1),
    lambda: session.append_batch([b'y'], timeout=0.1),
    lambda: session.try_submit(b'y'),
    lambda: session.try_submit_batch([b'y']),
    lambda: log.append(b'y', timeout=0.1),
]
for call in calls:
    try:
        call()
    except chiplog.Error as error:
        print(type(error).__name__, session.next_sequence, flush=True)"""
    with Program(body, str(tmp_path / "log")) as program:
        # The first is in flight and may be appended; the others are not.
        assert program.line() == ["TimeoutError", "2"]
        assert [program.line() for _ in range(5)] == [["BusyError", "2"]] * 5
        program.end()


def test_appends_together_keep_time_outs_while_the_disk_hangs(tmp_path: Path) -> None:
    body = f"""{NAMED}; hold()
try:
    logs.append_together([(log, [b'x'])], timeout=0.1)
except chiplog.TimeoutError as error:
    while log.metrics().queue_appends == 0:
        time.sleep(0.01)
    print("may still become durable" in str(error), log.status().last_index, flush=True)
logs.close()"""
    with Program(body, str(tmp_path / "logs")) as program:
        assert program.line() == ["True", "0"]
        program.end()
    with chiplog.Logs(tmp_path / "logs", options=chiplog.Options(segment_bytes=1 << 20, sessions_max=16)) as logs:
        assert logs.info("a").last_index == 1, "it was appended later"


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


def test_close_wakes_waiting_calls(tmp_path: Path, servers: Servers) -> None:
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
    for whole_client in (False, True):
        other = chiplog.Client(servers.clients)
        watch = other.watch()
        next(watch)
        closes(*in_thread(lambda: [None for _ in watch]), other.close if whole_client else watch.close)
        with pytest.raises(chiplog.ClosedError):
            next(watch)

    log = chiplog.Log(tmp_path / "log", SMALL)
    with chiplog.ReadOnlyLog(log.path) as viewer:
        seen = viewer.tail()
        closes(*in_thread(lambda: next(seen)), viewer.close)
    with pytest.raises(chiplog.ClosedError):
        viewer.status()
    log.close()

    follower = chiplog.Follower(tmp_path / "copy", servers.clients)
    follower.wait_for(client.info().last, PATIENCE)  # no more records arrive
    copied = follower.tail()
    closes(*in_thread(lambda: next(copied)), follower.close)


def test_a_closed_client_ends_its_calls_and_accepts_no_more(servers: Servers) -> None:
    patient = chiplog.ClientOptions(timeout=10 * PATIENCE, attempt_timeout=10 * PATIENCE)
    client = chiplog.Client(servers.clients, patient)
    producer, reader = client.producer(), client.tail(chiplog.Start.first())
    try:
        for server in servers.running.values():
            server.send_signal(signal.SIGSTOP)
        begun = threading.Event()

        async def both() -> list[object]:
            asyncio.get_running_loop().call_later(0.1, begun.set)
            return list(await asyncio.gather(client.info_async(), client.discard_async(1), return_exceptions=True))

        ended: list[object] = []
        awaiting, caught = in_thread(lambda: ended.extend(asyncio.run(both())))
        assert begun.wait(PATIENCE)
        closes(*in_thread(client.info), client.close)
        awaiting.join(PATIENCE)
        assert not awaiting.is_alive() and not caught
        assert [type(one) for one in ended] == [chiplog.ClosedError] * 2
    finally:
        for server in servers.running.values():
            server.send_signal(signal.SIGCONT)
    calls: list[Callable[[], object]] = [client.info, client.producer, client.watch, client.read, client.open_session]
    for call in calls:
        with pytest.raises(chiplog.ClosedError):
            call()
    client.close()
    index = producer.append(b"producers and readers go on", timeout=PATIENCE)

    def reads_it() -> None:
        while next(reader).index < index:  # its server may learn of the record later
            pass

    reading, caught = in_thread(reads_it)
    reading.join(PATIENCE)
    assert not reading.is_alive() and not caught
    reader.close()
    producer.close()


def test_a_wait_for_a_record_times_out_while_another_thread_reads(log: chiplog.Log) -> None:
    tail = log.tail()
    reading, _ = in_thread(lambda: next(tail))
    time.sleep(0.1)
    got: list[bool] = []
    waiting, caught = in_thread(lambda: got.append(tail.wait(timeout=0.05)))
    waiting.join(PATIENCE)
    assert not waiting.is_alive() and not caught and got == [False]
    log.append(b"x")
    reading.join(PATIENCE)


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
    """Each record goes to one of them."""
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
    assert log.status().last_index == 400


def test_a_forked_child_leaves_its_parent_alone(tmp_path: Path, servers: Servers) -> None:
    program = """
import gc, os, sys
import chiplog
log = chiplog.Log(sys.argv[1] + "/log", chiplog.Options(segment_bytes=1 << 20))
log.append(b"x")
ticket, reader, session = log.submit(b"y"), log.tail(1), log.session()
viewer = chiplog.ReadOnlyLog(sys.argv[1] + "/log")
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


def test_a_signal_without_an_exception_does_not_end_a_wait(log: chiplog.Log) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:

        def end_the_wait() -> None:
            os.kill(os.getpid(), signal.SIGUSR1)
            end = time.monotonic() + PATIENCE
            while not seen and time.monotonic() < end:
                time.sleep(0.01)
            log.append(b"x")

        threading.Timer(0.1, end_the_wait).start()
        assert next(log.tail()).copy() == b"x" and seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_children_of_a_busy_process_drop_their_handles(tmp_path: Path) -> None:
    """Locks that another thread of the parent held at the fork stay locked in the child for ever."""
    program = """
import asyncio, gc, os, signal, sys, threading
import chiplog
from chiplog import _aio
log = chiplog.Log(sys.argv[1], chiplog.Options(segment_bytes=1 << 20))
async def work():
    tail = log.tail()
    waits = asyncio.ensure_future(anext(tail))
    await asyncio.sleep(0)
    completions = _aio.completions(asyncio.get_running_loop())
    for n in range(100):
        tickets = [log.submit(b"x") for _ in range(50)]
        under_way = [log.append_async(b"x") for _ in range(50)]
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            try:
                completions.drain()  # it would take the parent's wake-ups
                os._exit(9)
            except chiplog.ForkedError:
                pass
            del tickets, under_way, waits, completions
            gc.collect()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        assert len(await asyncio.gather(*under_way)) == 50
        assert (await waits).copy() == b"x"
        waits = asyncio.ensure_future(anext(tail))
    waits.cancel()
asyncio.run(work())
print("well")
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * PATIENCE)
    assert done.stdout == "well\n", done.stderr
