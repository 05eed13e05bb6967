"""The bars of the Python package: each figure next to its limit, measured in the same run.

    make bench-python                        # builds the wheel and the limits in release mode, then runs this
    python python/bench/bench.py --quick     # small sizes; --json prints JSON, --json-file writes it

Needs numpy, the chiplog command (CHIPLOG=path) and benches/examples/limits.rs (LIMITS=path, else built here with cargo).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import chiplog

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python" / "examples"))

from servers import Servers  # noqa: E402

RECORD = 2048
BATCH = 128
MIB = 1 << 20


@dataclass(frozen=True)
class Bar:
    name: str
    value: float
    limit: float
    """The figure to compare with; 1: the bar is absolute."""
    bar: float
    least: bool
    """Whether the bar is the lowest ratio, or the highest."""
    unit: str
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.value / self.limit

    @property
    def met(self) -> bool:
        return self.ratio >= self.bar if self.least else self.ratio <= self.bar

    def row(self) -> dict[str, object]:
        """Returns the fields of `chiplog-bench bars --json`."""
        return {
            "name": self.name,
            "figure": self.value,
            "limit": self.limit,
            "unit": self.unit,
            "ratio": self.ratio,
            "bar": f"{'>=' if self.least else '<='} {self.bar:g}",
            "met": self.met,
            "note": self.note,
        }


def best(rounds: int, work: Callable[[], int]) -> float:
    """Returns the highest rate per second that `work` reaches."""
    rates = []
    for _ in range(rounds):
        begun = time.perf_counter()
        counted = work()
        rates.append(counted / (time.perf_counter() - begun))
    return max(rates)


def exhaust(iterable: Iterable[object]) -> int:
    n = 0
    for _ in iterable:
        n += 1
    return n


def limits(*args: str) -> float:
    program = os.environ.get("LIMITS") or str(ROOT / "target" / "release" / "examples" / "limits")
    if "LIMITS" not in os.environ:
        build = ["cargo", "build", "--quiet", "--release", "--package", "chiplog-bench", "--example", "limits"]
        subprocess.run(build, cwd=ROOT, check=True)
    return float(subprocess.run([program, *args], check=True, capture_output=True, text=True).stdout)


def fill(log: chiplog.Log, size: int) -> None:
    batch = [os.urandom(RECORD) for _ in range(BATCH)]
    tickets = [log.submit_batch(batch) for _ in range(size // (RECORD * BATCH))]
    tickets[-1].wait()


def reading(scratch: Path, mib: int, rounds: int) -> list[Bar]:
    dir = scratch / "read"
    records = mib * MIB // (RECORD * BATCH) * BATCH
    with chiplog.Log(dir) as log:
        fill(log, mib * MIB)
        views = best(rounds, lambda: exhaust(log.read().views()))
        data = best(rounds, lambda: sum(1 for r in log.read() if r.data))
        handles = best(rounds, lambda: exhaust(log.read()))
        copies = best(rounds, lambda: exhaust(log.read().copies()))
        held = list(log.batches())
        in_hand = best(rounds, lambda: sum(len(b.views()) for b in held))
        del held
        numpy = best(rounds, lambda: sum(b.to_numpy()[0].nbytes for b in log.batches()))
        assert exhaust(log.read()) == records
    rust = limits("scan", str(dir), str(rounds))
    most = rust / RECORD
    note = f"a log of {mib} MiB in batches of {BATCH}; Rust's checked scan of it alone: {most / 1e6:.2f} M records/s"
    return [
        Bar("python_views", views / 1e6, 1, 5, True, "M records/s", note),
        Bar("python_records", handles / 1e6, 1, 5, True, "M records/s", "Record objects, without their bytes"),
        Bar("python_records_data", data / 1e6, 1, 5, True, "M records/s", "Record objects, and a view of each one's bytes"),
        Bar("python_views_in_hand", in_hand / 1e6, 1, 5, True, "M records/s", "batch.views() of batches read before"),
        Bar("python_copies", copies / 1e6, 1, 2, True, "M records/s", "bytes objects"),
        Bar("python_numpy", numpy / MIB, rust / MIB, 0.8, True, "MiB/s", "batch.to_numpy() beside Rust's next_batch()"),
    ]


def appending(scratch: Path, seconds: float) -> list[Bar]:
    record = os.urandom(RECORD)

    def rate(threads: int) -> float:
        with chiplog.Log(scratch / f"append{threads}") as log:
            end = time.perf_counter() + seconds
            counts = [0] * threads

            def work(n: int) -> None:
                while time.perf_counter() < end:
                    log.append(record)
                    counts[n] += 1

            running = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
            return sum(counts) / seconds

    one, eight = rate(1), rate(8)
    return [Bar("python_threads", eight, one, 5, True, "appends/s", "8 threads compared with one, each waits for its record")]


def following(scratch: Path, servers: Servers, mib: int) -> list[Bar]:
    with chiplog.Client(servers.clients) as client:
        with client.producer() as producer:
            records = [os.urandom(RECORD) for _ in range(BATCH)]
            for n in range(mib * MIB // RECORD):
                producer.send(records[n % BATCH])
        last = client.info().last
    server = servers.clients[servers.leader() - 1]
    def rust(dir: Path) -> float:
        return limits("follow", str(dir), server, str(last))

    def python(dir: Path) -> float:
        begun = time.perf_counter()
        with chiplog.Follower(dir, cluster=[server]) as follower:
            follower.wait_for(last)
            return time.perf_counter() - begun

    seconds: dict[str, list[float]] = {"rust": [], "python": []}
    for n in range(3):
        # They run first alternately: the disk may still be writing data of the first while the second begins.
        for name, follow in sorted({"rust": rust, "python": python}.items(), reverse=n % 2 == 0):
            seconds[name].append(follow(scratch / f"{name}{n}"))
            subprocess.run(["rm", "-rf", str(scratch / f"{name}{n}")], check=True)
    rates = {name: mib / min(took) for name, took in seconds.items()}
    note = f"a copy of {mib} MiB, the best of three"
    return [Bar("python_catch_up", rates["python"], rates["rust"], 0.8, True, "MiB/s", note)]


PRODUCE = """
import os, sys, time
import chiplog
server, rate, seconds, size = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
record = os.urandom(size)
with chiplog.Client([server]).producer() as producer:
    begun, sent = time.perf_counter(), 0
    while (now := time.perf_counter() - begun) < seconds:
        while sent < now * rate:
            producer.send(record)
            sent += size
        time.sleep(0.001)
    producer.flush(600)
    print(sent / (time.perf_counter() - begun))
"""


def streaming(scratch: Path, servers: Servers, rate: float, seconds: float) -> list[Bar]:
    """A follower in this process reads all records while another process appends."""
    client = chiplog.Client(servers.clients)
    begin = client.info().last + 1
    server = servers.clients[servers.leader() - 1]
    options = chiplog.FollowerOptions(files=chiplog.Options(retention_bytes=1 << 30))
    with chiplog.Follower(scratch / "stream", [server], start=chiplog.Start.next(), options=options) as follower:
        tail = follower.batches(begin, follow=True)
        got = 0

        def read() -> None:
            nonlocal got
            try:
                for batch in tail:
                    got += batch.data.nbytes
            except chiplog.ClosedError:
                pass

        reader = threading.Thread(target=read)
        reader.start()
        command = [sys.executable, "-c", PRODUCE, server, str(rate * MIB), str(seconds), str(RECORD)]
        before, begun = time.process_time(), time.perf_counter()
        sent = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        took, cpu = time.perf_counter() - begun, time.process_time() - before
        follower.wait_for(client.info().last, timeout=600)
        late = time.perf_counter() - begun - took
        follower.close()
        reader.join()
    note = f"{sent / MIB:.0f} MiB/s were sent for {took:.1f} s, {got / MIB:.0f} MiB read; {late * 1000:.0f} ms behind at the end"
    return [
        Bar("python_stream_cores", cpu / took, 1, 1, False, "cores", note),
        Bar("python_stream_rate", sent / MIB, rate, 0.9, True, "MiB/s", "the sent rate compared with the wanted one"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=ROOT / "target", help="the directory for temporary logs")
    parser.add_argument("--quick", action="store_true", help="small sizes, to check that it runs")
    parser.add_argument("--only", nargs="*", default=["read", "append", "follow", "stream"])
    parser.add_argument("--scan-mib", type=int)
    parser.add_argument("--follow-mib", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--json-file", type=Path)
    args = parser.parse_args()
    scan_mib = args.scan_mib or (16 if args.quick else 512)
    follow_mib = args.follow_mib or (32 if args.quick else 4096)
    seconds = 1.0 if args.quick else 10.0
    bars: list[Bar] = []
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chiplog-bench-", dir=args.dir)))
        if "read" in args.only:
            bars += reading(scratch, scan_mib, 2 if args.quick else 5)
        if "append" in args.only:
            bars += appending(scratch, seconds)
        if "follow" in args.only or "stream" in args.only:
            servers = stack.enter_context(Servers(dir=scratch, segment="64MiB"))
            if "follow" in args.only:
                bars += following(scratch, servers, follow_mib)
            if "stream" in args.only:
                bars += streaming(scratch, servers, 100.0, seconds)
    rows = [bar.row() for bar in bars]
    text = json.dumps({"version": chiplog.__version__, "python": sys.version, "bars": rows}, indent=1)
    if args.json_file:
        args.json_file.write_text(text + "\n")
    if args.json:
        print(text)
        return
    for bar in bars:
        against = f" / {bar.limit:,.1f} = {bar.ratio:.2f}" if bar.limit != 1 else ""
        sign = ">=" if bar.least else "<="
        met = "met" if bar.met else "SHORT"
        print(f"{bar.name:20} {bar.value:10,.2f}{against:20} {bar.unit:12} {sign} {bar.bar:g}: {met}  ({bar.note})")


if __name__ == "__main__":
    main()
