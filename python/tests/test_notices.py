"""chiplog's notices become records of `logging`."""

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import chiplog
import pytest
from conftest import PATIENCE, SMALL

DISCARDED = "records before the first were discarded"
LOGGER = logging.getLogger("chiplog")


class Records(logging.Handler):
    """Stores records and waits for them."""

    def __init__(self) -> None:
        super().__init__(level=logging.NOTSET)
        self.got: list[logging.LogRecord] = []
        self.changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self.changed:
            self.got.append(record)
            self.changed.notify_all()

    def discards(self) -> list[logging.LogRecord]:
        return [record for record in self.got if DISCARDED in record.getMessage()]

    def wait_for_discards(self, count: int) -> logging.LogRecord:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.discards()) >= count, PATIENCE)
            return self.discards()[-1]


@pytest.fixture
def records() -> Iterator[Records]:
    records = Records()
    LOGGER.addHandler(records)
    yield records
    LOGGER.removeHandler(records)
    LOGGER.setLevel(logging.NOTSET)
    chiplog.logging_changed()


def discard(log: chiplog.Log) -> None:
    """Causes a notice."""
    log.discard(log.append_batch([b"x", b"x"])[-1])


def test_a_record_has_level_message_and_target(log: chiplog.Log, records: Records) -> None:
    LOGGER.setLevel(logging.INFO)
    chiplog.logging_changed()
    discard(log)
    record = records.wait_for_discards(1)
    assert (record.name, record.levelno, record.levelname) == ("chiplog", logging.INFO, "INFO")
    assert getattr(record, "target").startswith("chiplog::")  # noqa: B009
    assert "records=" in record.getMessage()
    discard(log)
    records.wait_for_discards(2)


def test_the_level_is_read_when_a_handle_is_made(tmp_path: Path, records: Records) -> None:
    LOGGER.setLevel(logging.INFO)
    with chiplog.Log(tmp_path / "one", SMALL) as log:
        discard(log)
        records.wait_for_discards(1)
    LOGGER.setLevel(logging.ERROR)
    with chiplog.Log(tmp_path / "two", SMALL) as log:
        discard(log)
        LOGGER.setLevel(logging.INFO)
        chiplog.logging_changed()
        discard(log)
        records.wait_for_discards(2)
    assert len(records.discards()) == 2, "a notice below the level was logged"


def test_a_disabled_logger_gets_nothing(log: chiplog.Log, records: Records) -> None:
    LOGGER.setLevel(logging.CRITICAL + 1)
    chiplog.logging_changed()
    discard(log)
    LOGGER.setLevel(logging.INFO)
    chiplog.logging_changed()
    discard(log)
    records.wait_for_discards(1)
    assert len(records.discards()) == 1


def test_a_handler_may_use_the_log_and_wait(log: chiplog.Log, records: Records) -> None:
    class Appends(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if DISCARDED in record.getMessage():
                log.append(record.getMessage().encode())

    appends = Appends()
    LOGGER.addHandler(appends)
    try:
        LOGGER.setLevel(logging.INFO)
        chiplog.logging_changed()
        discard(log)
        log.wait_for(3, PATIENCE)
        assert DISCARDED in log.get(3).decode()
    finally:
        LOGGER.removeHandler(appends)


def run(script: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, str(directory)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "panicked" not in done.stderr, done.stderr
    return done.stdout + done.stderr


PROLOGUE = """
import chiplog, logging, os, sys
def discard(log):
    log.discard(log.append_batch([b"x", b"x"])[-1])
small = chiplog.Options(segment_bytes=1 << 20)
"""


def test_nothing_goes_to_standard_error_unasked(tmp_path: Path) -> None:
    script = PROLOGUE + """
logging.getLogger("chiplog").setLevel(logging.DEBUG)
log = chiplog.Log(sys.argv[1], small)
discard(log)
log.close()
"""
    assert run(script, tmp_path / "log") == ""


def test_waiting_notices_are_logged_at_exit(tmp_path: Path) -> None:
    script = PROLOGUE + """
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s", stream=sys.stdout)
log = chiplog.Log(sys.argv[1], small)
for _ in range(10):
    discard(log)
log.barrier()
"""
    assert run(script, tmp_path / "log").count("chiplog INFO " + DISCARDED) == 10


def test_a_full_queue_drops_and_counts_notices(tmp_path: Path) -> None:
    script = PROLOGUE + """
import threading
held, seen = threading.Event(), threading.Event()
class Slow(logging.Handler):
    def emit(self, record):
        seen.set()
        held.wait()
        print(record.getMessage())
logger = logging.getLogger("chiplog")
logger.setLevel(logging.INFO)
logger.addHandler(Slow())
log = chiplog.Log(sys.argv[1], small)
discard(log)
seen.wait()
log.append_batch([b"x"] * 1200)
for first in range(4, 1104):
    log.discard(first)  # the logging thread is blocked
log.close()
held.set()
"""
    assert "notices were dropped because logging could not keep up" in run(script, tmp_path / "log")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_logs_its_own_notices(tmp_path: Path) -> None:
    script = PROLOGUE + """
logging.basicConfig(level=logging.INFO, format="%(process)d %(message)s", stream=sys.stdout)
parent = chiplog.Log(sys.argv[1] + "-parent", small)
discard(parent)
parent.close()
pid = os.fork()
if pid == 0:
    with chiplog.Log(sys.argv[1] + "-child", small) as log:
        discard(log)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
print("child", pid)
"""
    lines = run(script, tmp_path / "log").splitlines()
    child = next(line.split()[1] for line in lines if line.startswith("child"))
    discards = [line.split()[0] for line in lines if DISCARDED in line]
    assert child in discards and len(set(discards)) == 2, lines


def test_a_raising_record_factory_loses_only_its_record(tmp_path: Path) -> None:
    """All notices behind it were lost."""
    script = PROLOGUE + """
import threading
held, seen = threading.Event(), threading.Event()
class Slow(logging.StreamHandler):
    def emit(self, record):
        seen.set()
        held.wait()
        super().emit(record)
logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[Slow(sys.stdout)])
usual, made = logging.getLogRecordFactory(), []
def factory(*args, **more):
    made.append(args)
    if len(made) == 2:
        raise ValueError("planted")
    return usual(*args, **more)
logging.setLogRecordFactory(factory)
sys.unraisablehook = lambda what: print("unraisable", what.exc_value)
log = chiplog.Log(sys.argv[1], small)
discard(log)
seen.wait()
for _ in range(10):
    discard(log)  # all of them wait
log.barrier()
held.set()
"""
    said = run(script, tmp_path / "log")
    assert said.count("unraisable planted") == 1, said
    assert sum(DISCARDED in line for line in said.splitlines()) >= 10, said


HANGS = PROLOGUE + """
import atexit, signal, threading
hangs = threading.Event()
class Hangs(logging.Handler):
    def emit(self, record):
        hangs.set()
        threading.Event().wait()
logger = logging.getLogger("chiplog")
logger.setLevel(logging.INFO)
logger.addHandler(Hangs())
log = chiplog.Log(sys.argv[1], small)
discard(log)
log.close()
hangs.wait()
"""


def end_of(script: str, directory: Path) -> str:
    """Runs a program, which must end within a minute. Returns its stderr."""
    command = [sys.executable, "-c", script, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False).stderr


def test_a_hanging_handler_does_not_block_exit(tmp_path: Path) -> None:
    """The program never ended."""
    said = end_of(HANGS, tmp_path / "log")
    assert said.count("chiplog: a handler of logging.getLogger(\"chiplog\") did not return within 5 s") == 1, said
    assert len(said.splitlines()) == 1, said


def test_ctrl_c_ends_the_wait_for_a_hanging_handler(tmp_path: Path) -> None:
    # No Python code that could receive the signal runs between this callback and the package's own.
    script = HANGS + """
signal.signal(signal.SIGALRM, signal.default_int_handler)
atexit.register(signal.setitimer, signal.ITIMER_REAL, 0.2)
"""
    said = end_of(script, tmp_path / "log")
    assert "KeyboardInterrupt" in said and "did not return" not in said, said


def test_a_client_that_waits_for_servers_says_why(records: Records) -> None:
    LOGGER.setLevel(logging.WARNING)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{bound.getsockname()[1]}"  # nothing listens there
        with pytest.raises(chiplog.UnavailableError):
            chiplog.Client([server], chiplog.ClientOptions(timeout=5))
    with records.changed:
        assert records.changed.wait_for(lambda: records.got, PATIENCE)
    [record] = records.got
    message = record.getMessage()
    assert record.levelno == logging.WARNING and record.name == "chiplog"
    assert message.startswith(f"not connected yet to any of {server}: ") and "refused" in message, message
    assert message.endswith("; trying for up to 5 s"), message
