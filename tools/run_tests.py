#!/usr/bin/env python3
"""Runs what `cargo test` would run, three test programs at a time, and other parts of the tests beside them.

    tools/run_tests.py [--beside PART ...] [arguments of cargo test ...]

Half of the test programs mostly compute (simulations, crash points), the other half mostly waits (servers that start,
elections, time-outs). `cargo test` runs one program after the other and leaves a processor idle. This script builds the same
programs and runs one of the first half and two of the other at a time. The documentation tests count as a program that waits,
and so does `make PART` for each PART. It prints what each has printed once it has ended, and lists the slowest with the
processor time of each. It runs all of them even if one fails; the output of the failed ones comes last. A program that has not
ended after LIMIT seconds hangs: it is ended with all that it has started, and counts as failed.

Exit status: 0 if all tests passed, 1 if one failed, cargo's own if the programs could not be built.
CARGO names the cargo to use, MAKE the make, RUST_TEST_THREADS the threads of each program (3).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
MAKE = os.environ.get("MAKE", "make")
# Seconds: three times what the longest one takes on two processors.
LIMIT = 1200
# Directories of the packages whose tests mostly compute.
COMPUTE = {"core", "fuzz", "sim", "tools/model", "make sim-bugs"}
# Programs that take longest start first, so that none of them runs alone at the end.
LONGEST = ["sim", "serve", "make test-python", "documentation", "binary", "make sim-bugs", "crash", "crash_faults", "runs"]


class Program(NamedTuple):
    """A test program, or a command that counts as one."""

    name: str
    shown: str
    package: str
    home: Path
    command: list[str]


def build(arguments):
    """Builds the test programs and returns them."""
    command = [CARGO, "test", *arguments, "--no-run", "--message-format=json-render-diagnostics"]
    programs = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            message = json.loads(line) if line.startswith("{") else {}
            if message.get("reason") != "compiler-artifact" or not message["executable"]:
                continue
            if not message["profile"]["test"]:
                continue
            home = Path(message["manifest_path"]).parent
            package = home.relative_to(ROOT).as_posix()
            shown = f"{package}/{Path(message['target']['src_path']).relative_to(home)}"
            programs.append(Program(message["target"]["name"], shown, package, home, [message["executable"]]))
    if process.returncode:
        sys.exit(process.returncode)
    return programs


def end_session(leader):
    """Kills all processes of the session that `leader` began."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == leader:
                os.kill(int(entry.name), signal.SIGKILL)


def rank(program):
    """Orders programs: the longest first, then as cargo does."""
    return LONGEST.index(program.name) if program.name in LONGEST else len(LONGEST)


class Lanes:
    """The programs that are still to be run: those that compute and those that wait. Methods may be called from any thread."""

    def __init__(self, programs):
        programs = sorted(programs, key=rank)
        compute = [p for p in programs if p.package in COMPUTE]
        self._lanes = [compute, [p for p in programs if p not in compute]]
        self._lock = threading.Lock()
        self._running = {}
        self.times = []
        self.failed = []

    def interrupt(self, *_):
        """Ends what runs, and this script: the handler of SIGINT and SIGTERM, which reach no other session."""
        for leader, program in dict(self._running).items():
            print(f"interrupted: {program.shown}", flush=True)
            end_session(leader)
        os._exit(1)

    def work(self, lane):
        """Runs the programs of one kind, then those that are left of the other."""
        while program := self._next(lane):
            self._run(program)

    def _next(self, lane):
        with self._lock:
            for programs in (self._lanes[lane], self._lanes[1 - lane]):
                if programs:
                    return programs.pop(0)
        return None

    def _run(self, program):
        shown = program.shown
        begun = time.monotonic()
        # Without the CARGO_MANIFEST_DIR that cargo sets: a program that builds others would compile ring once more, and all
        # that depends on it.
        environment = os.environ | {"CARGO": CARGO}
        # A session of its own, so that what the program has started and left behind is ended, too. It would keep a pipe open.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                program.command,
                cwd=program.home,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running[process.pid] = program
            limit = threading.Timer(LIMIT, end_session, [process.pid])
            limit.start()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its number stays taken
            end_session(process.pid)
            limit.cancel()
            _, status, used = os.wait4(process.pid, 0)
            del self._running[process.pid]
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            printed = f"     Running {shown}\n{output.read().decode(errors='replace')}"
        took = time.monotonic() - begun
        hangs = took >= LIMIT
        if hangs:
            printed += f"\n{shown} had not ended after {LIMIT} s\n"
        with self._lock:
            self.times.append((took, used.ru_utime + used.ru_stime, shown))
            if process.returncode or hangs:
                self.failed.append((shown, printed))
                printed = f"     Running {shown}\nFAILED; what it has printed comes at the end\n\n"
            sys.stdout.write(printed)
            sys.stdout.flush()


def main():
    """Builds, runs, reports."""
    arguments, parts = sys.argv[1:], []
    if arguments in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    while arguments[:1] == ["--beside"]:
        parts.append(f"make {arguments[1]}")
        arguments = arguments[2:]
    os.environ.setdefault("RUST_TEST_THREADS", "3")
    begun = time.monotonic()
    programs = build(arguments)
    print(f"== building the test programs took {time.monotonic() - begun:.0f} s", flush=True)
    programs.append(Program("documentation", "documentation tests", "", ROOT, [CARGO, "test", *arguments, "--doc"]))
    programs += [Program(part, part, part, ROOT, [MAKE, "--no-print-directory", part.split()[1]]) for part in parts]
    lanes = Lanes(programs)
    for interrupted in (signal.SIGINT, signal.SIGTERM):
        signal.signal(interrupted, lanes.interrupt)
    begun = time.monotonic()
    # Two of those that wait leave room for one that computes.
    threads = [threading.Thread(target=lanes.work, args=(lane,)) for lane in (0, 1, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, used = time.monotonic() - begun, sum(used for _, used, _ in lanes.times)
    print(f"== running {len(lanes.times)} test programs took {took:.0f} s, of processors {used:.0f} s; the slowest:")
    for took, used, shown in sorted(lanes.times, reverse=True)[:12]:
        print(f"   {took:6.1f} s, of processors {used:6.1f} s  {shown}")
    for _, printed in lanes.failed:
        print(printed)
    for shown, _ in lanes.failed:
        print(f"FAILED: {shown}")
    return 1 if lanes.failed else 0


if __name__ == "__main__":
    sys.exit(main())
