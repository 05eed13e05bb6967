"""Mutation tests of the consensus state machine: changes the code in one small place at a time, and checks whether a test fails.

        python3 tools/mutants.py                 # judges a sample of 300, and continues where an earlier run stopped
        python3 tools/mutants.py --survivors     # runs the tests on survivors again, after tests were added
        python3 tools/mutants.py --report        # only prints the known results, as in docs/mutants.md

`cargo mutants` makes the mutants. Building each of them alone would take most of the time, so this program puts the sample
into one build: the body of a mutated function becomes a `match` over its variants, and the environment variable CHIPLOG_MUTANT
selects the one that runs. A mutant that does not compile beside others is built alone. The tests then judge the variant that
runs, the cheapest first, until one of them fails.

Results are in tools/mutants.json, one line a mutant. It belongs to the repository, so that a fresh clone continues from there. A
result holds as long as the text of the mutated function is the same; `--fresh` forgets all of them. A copy of the sources and
their build are below target/mutants: the sources may change while this runs.
"""

import argparse
import functools
import hashlib
import json
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "mutants"
TREE, BUILD, TEMP = WORK / "tree", WORK / "build", WORK / "tmp"
RESULTS = ROOT / "tools" / "mutants.json"
PAGE = ROOT / "docs" / "mutants.md"
CARGO = os.environ.get("CARGO", "cargo")

WHERE = ["core/src/replica/raft/mod.rs", "core/src/replica/raft/*.rs", "core/src/replica/state/command.rs", "core/src/replica/state/sequencer/*.rs", "core/src/replica/state/session_table/mod.rs"]
WHERE += ["core/src/store/recovery.rs"]
WITHOUT = ["**/tests.rs", "**/tests/**", "**/fixtures.rs"]
FOR_TESTS = re.compile(r"^\s*#\[cfg\(any\(test,", re.MULTILINE)
"""An attribute of functions that no user's build has: cargo-mutants only knows `#[cfg(test)]`."""
SEEDS = 300
BAR = 0.9
"""The share of mutants that must be caught."""

SEED_TEST = "no_violation_happens_and_every_fault_does"


@dataclass(frozen=True)
class Judge:
    """Tests that a mutant must pass."""

    kind: str
    """The outcome of a mutant that they catch."""
    binary: str
    arguments: tuple[str, ...] = ()
    of: str = ""
    """Only mutants of files whose paths have these prefixes: these tests do not run other files."""

    def __str__(self) -> str:
        return " ".join((self.binary, *self.arguments))


STORE = "core/src/store/"
JUDGES = [
    Judge("tests", "chiplog", ("--skip", "store::")),
    Judge("tests", "sessions"),
    Judge("tests", "replication"),
    Judge("tests", "engine"),
    Judge("tests", "full_disks"),
    Judge("tests", "chiplog", ("store::",), of=STORE),
    Judge("tests", "repair"),
    Judge("tests", "slow_syncs"),
    Judge("tests", "rot", of=STORE),
    Judge("tests", "crash_faults", of=STORE),
    Judge("seeds", "sim", (SEED_TEST, "--nocapture")),
]
"""The cheapest first: each judges all mutants that are left before the next one starts."""
FAILED = re.compile(r"^test .*\bFAILED$|^VIOLATION: |^test result: FAILED")

CPU_FACTOR, CPU_MORE = 3, 5
"""A judge may take this many times the processor time that it takes without a mutant, and this many seconds more."""
ASLEEP_SECONDS = 40
"""All threads of a test asleep for this long: nothing will wake them."""
MEMORY_BYTES = 12 << 30

CHOICE = """
/// The mutant that runs. 0: none.
pub(crate) mod mutant {
    use std::sync::OnceLock;
    static CHOSEN: OnceLock<u32> = OnceLock::new();
    pub(crate) fn chosen() -> u32 {
        *CHOSEN.get_or_init(|| std::env::var("CHIPLOG_MUTANT").ok().and_then(|n| n.parse().ok()).unwrap_or(0))
    }
}
"""


@dataclass
class Mutant:
    """One small change of one function."""

    key: str
    """Its name without line and column, which move with every edit; the second of one name has a number."""
    file: str
    line: int
    body: tuple[int, int] | None
    """The range of the function's body in the file; None: it is not in a function."""
    change: tuple[int, int]
    replacement: str
    digest: str
    """Of the surrounding text: a result for another text does not hold."""
    constant: bool
    """In a function that cannot choose, or whose variants differ in type."""


@functools.cache
def source(file: str) -> str:
    """A source file as it was at the first access."""
    return (ROOT / file).read_text()


def offset(starts: list[int], place: dict[str, int]) -> int:
    return starts[place["line"] - 1] + place["column"] - 1


def body_of(text: str, start: int, end: int) -> int | None:
    """The start of the body of the function in this range: comments and attributes before it have braces too."""
    at = start
    for line in text[start:end].splitlines(keepends=True):
        plain = line.strip()
        if not plain.startswith(("//", "#[")) and "{" in line:
            return at + line.index("{")
        at += len(line)
    return None


def listed() -> list[Mutant]:
    """All mutants of the sources as they are."""
    command = ["cargo-mutants", "mutants", "--list", "--json"]
    command += [part for name in WHERE for part in ("--file", name)] + [part for name in WITHOUT for part in ("--exclude", name)]
    told = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    seen: Counter[str] = Counter()
    found = []
    for mutant in told:
        if "tests::" in mutant["name"]:
            continue  # cargo-mutants does not recognize test modules with a further condition
        file = mutant["file"]
        text = source(file)
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        name = file + ":" + re.sub(r"^[^ ]*:\d+:\d+:", "", mutant["name"])
        seen[name] += 1
        key = name if seen[name] == 1 else f"{name} ({seen[name]})"
        change = offset(starts, mutant["span"]["start"]), offset(starts, mutant["span"]["end"])
        body, head, around = None, "", text[starts[mutant["span"]["start"]["line"] - 1] : change[1]]
        if function := mutant["function"]:
            start, end = offset(starts, function["span"]["start"]), offset(starts, function["span"]["end"])
            begin = body_of(text, start, end)
            around = text[start:end]
            if FOR_TESTS.search(text[start:begin]):
                continue
            if begin is not None and text[end - 1] == "}" and begin < change[0]:
                body, head = (begin, end), text[start:begin]
        digest = hashlib.sha256(f"{key}\n{around}".encode()).hexdigest()[:16]
        constant = body is None or bool(re.search(r"\bconst fn\b|-> .*\bimpl\b", head))
        found.append(
            Mutant(key, file, mutant["span"]["start"]["line"], body, change, mutant["replacement"], digest, constant)
        )
    return found


def sampled(mutants: list[Mutant], seed: int, count: int) -> list[Mutant]:
    """The mutants whose name's digest under the seed is smallest: an edit changes little of the sample."""
    rank = lambda mutant: hashlib.sha256(f"{seed} {mutant.key}".encode()).digest()
    return sorted(mutants, key=rank)[:count]


# ---- the build ----


def copied() -> None:
    """Copies the sources of the working tree; unchanged files keep their times."""
    names = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    wanted = {name for name in names.stdout.decode().split("\0") if name and (ROOT / name).is_file()}
    for name in wanted:
        put(TREE / name, (ROOT / name).read_bytes())
    for folder in ("core/src", "core/tests"):
        for file in (TREE / folder).rglob("*.rs"):
            if str(file.relative_to(TREE)) not in wanted:
                file.unlink()


def put(file: Path, text: bytes) -> None:
    if not file.is_file() or file.read_bytes() != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)


def changed(text: str, mutant: Mutant, begin: int, end: int) -> str:
    return text[begin : mutant.change[0]] + mutant.replacement + text[mutant.change[1] : end]


Lines = dict[tuple[str, int], list[Mutant]]


def woven(mutants: dict[int, Mutant]) -> Lines:
    """Writes sources in which each of these can be selected. Returns whose text is in which line."""
    of_file: dict[str, dict[tuple[int, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, mutant in mutants.items():
        assert mutant.body
        of_file[mutant.file][mutant.body].append(number)
    lines: Lines = {}
    files = {str(file.relative_to(ROOT)) for name in WHERE for file in ROOT.glob(name)}
    for file in files:
        text = source(file)
        out, at = "", 0
        for (begin, end), numbers in sorted(of_file[file].items()):
            own = [mutants[number] for number in numbers]
            out += text[at:begin] + "{ match crate::mutant::chosen() {\n"
            first = out.count("\n")
            for number, mutant in zip(numbers, own):
                before = out.count("\n")
                out += f"{number} => {changed(text, mutant, begin, end)}\n"
                for line in range(before + 1, out.count("\n") + 1):
                    lines[file, line] = [mutant]
            out += f"_ => {text[begin:end]}\n}} }}"
            for line in range(first, out.count("\n") + 2):
                lines.setdefault((file, line), own)
            at = end
        put(TREE / file, (out + text[at:]).encode())
    put(TREE / "core/src/lib.rs", (source("core/src/lib.rs") + CHOICE).encode())
    return lines


def built() -> tuple[dict[str, Path], list[dict[str, Any]]]:
    """The test binaries by their names, or the errors."""
    tests = sorted({judge.binary for judge in JUDGES} - {"chiplog"})
    command = [CARGO, "test", "--package", "chiplog", "--features", "testing", "--profile", "mutants", "--no-run", "--lib"]
    command += [part for name in tests for part in ("--test", name)] + ["--message-format", "json"]
    environment = os.environ | {"CARGO_TARGET_DIR": str(BUILD)}
    run = subprocess.run(command, cwd=TREE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    messages = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    errors = [m["message"] for m in messages if m["reason"] == "compiler-message" and m["message"]["level"] == "error"]
    binaries = {m["target"]["name"]: Path(m["executable"]) for m in messages if m.get("executable") and m["profile"]["test"]}
    if run.returncode and not errors:
        raise SystemExit(f"the build failed:\n{run.stderr}")
    return ({}, errors) if run.returncode else (binaries, [])


def built_together(mutants: dict[int, Mutant]) -> tuple[dict[str, Path], dict[int, Mutant]]:
    """One build with all that compile together; the others must be built alone."""
    together = mutants
    while True:
        lines = woven(together)
        binaries, errors = built()
        if binaries:
            return binaries, {number: mutant for number, mutant in mutants.items() if number not in together}
        guilty: set[str] = set()
        for error in errors:
            for span in error["spans"]:
                if span["is_primary"]:
                    guilty |= {mutant.key for mutant in lines.get((span["file_name"], span["line_start"]), [])}
        if not guilty:
            raise SystemExit("the build failed:\n" + "\n".join(error["rendered"] for error in errors))
        print(f"{len(guilty)} of {len(together)} are left for a build of their own", flush=True)
        together = {number: mutant for number, mutant in together.items() if mutant.key not in guilty}


def built_alone(mutant: Mutant) -> dict[str, Path]:
    """Empty: it does not compile."""
    woven({})
    text = source(mutant.file)
    put(TREE / mutant.file, changed(text, mutant, 0, len(text)).encode())
    return built()[0]


# ---- the verdict ----


def bounded(cpu_seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def asleep(pid: int) -> bool:
    """Whether every thread of the process waits."""
    try:
        states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    return bool(states) and all(state == "S" for state in states)


def run(binary: Path, judge: Judge, number: int, cpu_seconds: int) -> tuple[str, str]:
    """The verdict of a test binary on a mutant: "passed", "failed" or "hung", and the line that shows it."""
    shutil.rmtree(TEMP, ignore_errors=True)
    TEMP.mkdir(parents=True)
    environment = os.environ | {"CHIPLOG_MUTANT": str(number), "CHIPLOG_SIM_SEEDS": str(SEEDS), "RUST_BACKTRACE": "0"}
    child = subprocess.Popen(
        [binary, "--test-threads", "2", *judge.arguments],
        cwd=TREE / "core",
        env=environment | {"TMPDIR": str(TEMP)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
        preexec_fn=lambda: bounded(cpu_seconds),
    )
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert child.stdout
        for line in child.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    quiet = time.monotonic()
    try:
        while True:
            try:
                line = lines.get(timeout=1)
            except queue.Empty:
                if not asleep(child.pid):
                    quiet = time.monotonic()
                if time.monotonic() - quiet > ASLEEP_SECONDS:
                    return "hung", "every thread sleeps"
                continue
            if line is None:
                code = child.wait()
                if code == -signal.SIGXCPU or code == -signal.SIGKILL:
                    return "hung", f"{cpu_seconds} s of processor time"
                return ("passed", "") if code == 0 else ("failed", f"exit code {code}")
            quiet = time.monotonic()
            if FAILED.match(line):
                return "failed", line.strip()
    finally:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()


def limit(binaries: dict[str, Path], judge: Judge) -> int:
    """Measures the processor time that a judge may take, and checks that it passes without a mutant."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    verdict, line = run(binaries[judge.binary], judge, 0, resource.RLIM_INFINITY)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if verdict != "passed":
        raise SystemExit(f"{judge} fails without any mutant: {line}")
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{judge}: {took:.1f} s of processor time without a mutant", flush=True)
    return int(CPU_FACTOR * took) + CPU_MORE


# ---- known results ----


class Known:
    """Results that are kept after a run."""

    def __init__(self, fresh: bool) -> None:
        self.entries: dict[str, dict[str, Any]] = {}
        if RESULTS.is_file() and not fresh:
            self.entries = json.loads(RESULTS.read_text())

    def of(self, mutant: Mutant) -> dict[str, Any]:
        """Its outcome, if it is known, and the judges that it has passed."""
        entry = self.entries.get(mutant.key)
        return entry if entry and entry["digest"] == mutant.digest else {"outcome": None, "passed": []}

    def keep(self, mutant: Mutant, entry: dict[str, Any]) -> None:
        kept = {"digest": mutant.digest, "line": mutant.line, "alone": self.of(mutant).get("alone", mutant.constant)}
        self.entries[mutant.key] = kept | entry
        lines = [f"{json.dumps(key)}: {json.dumps(self.entries[key], sort_keys=True)}" for key in sorted(self.entries)]
        part = WORK / "results.tmp"
        part.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        shutil.move(part, RESULTS)


def figures(known: Known, sample: list[Mutant], of: int) -> dict[str, Any]:
    outcomes = Counter(known.of(mutant)["outcome"] for mutant in sample)
    del outcomes[None]
    survivors = [mutant.key for mutant in sample if known.of(mutant)["outcome"] == "survived"]
    caught = outcomes["tests"] + outcomes["seeds"] + outcomes["time-out"]
    page = PAGE.read_text().replace("\\|", "|") if PAGE.is_file() else ""  # as a table wants it
    return {
        "mutants": of,
        "sample": len(sample),
        "judged": sum(outcomes.values()),
        "unviable": outcomes["unviable"],
        "caught_by_tests": outcomes["tests"],
        "caught_by_seeds": outcomes["seeds"],
        "caught_by_time_out": outcomes["time-out"],
        "survived": len(survivors),
        "caught_share": round(caught / max(1, caught + len(survivors)), 4),
        "survivors": survivors,
        "unexplained": [key for key in survivors if f"`{key.removeprefix('core/src/')}`" not in page],
    }


def told(told: dict[str, Any]) -> str:
    rows = [("mutants of these files", "mutants"), ("sample", "sample"), ("judged", "judged")]
    rows += [("do not compile", "unviable"), ("caught by the tests", "caught_by_tests")]
    rows += [("caught by a seed of the simulator", "caught_by_seeds"), ("caught: the tests hang", "caught_by_time_out")]
    rows += [("survived", "survived")]
    text = "\n".join(f"| {name} | {told[field]} |" for name, field in rows)
    left = told["sample"] - told["judged"]
    share = f"{told['caught_share']:.1%}" if left == 0 else f"not known: {left} are not judged"
    text = f"| | |\n|---|---|\n{text}\n| caught, of those that compile | {share} |\n"
    for key in told["survivors"]:
        text += f"{'no explanation' if key in told['unexplained'] else 'explained'}: {key.removeprefix('core/src/')}\n"
    return text


def asked(known: Known, mutants: dict[int, Mutant], binaries: dict[str, Path], limits: dict[Judge, int]) -> None:
    """Runs the judges on the mutants in these binaries."""
    for at, judge in enumerate(JUDGES):
        left = {number: mutant for number, mutant in mutants.items() if known.of(mutant)["outcome"] is None}
        for done, (number, mutant) in enumerate(left.items(), 1):
            passed = known.of(mutant)["passed"]
            if str(judge) not in passed and mutant.file.startswith(judge.of):
                if judge not in limits:
                    limits[judge] = limit(binaries, judge)
                verdict, line = run(binaries[judge.binary], judge, number, limits[judge])
                if verdict != "passed":
                    outcome = "time-out" if verdict == "hung" else judge.kind
                    known.keep(mutant, {"outcome": outcome, "passed": passed, "by": f"{judge.binary}: {line}"})
                    print(f"{done}/{len(left)} {outcome}: {mutant.key}  {judge.binary}: {line}", flush=True)
                    continue
                passed = [*passed, str(judge)]
            is_last = at + 1 == len(JUDGES)
            known.keep(mutant, {"outcome": "survived" if is_last else None, "passed": passed, "by": ""})
            if is_last:
                print(f"{done}/{len(left)} survived: {mutant.key}", flush=True)


def judge_all(known: Known, sample: list[Mutant], again: bool) -> None:
    for mutant in sample:
        entry = known.of(mutant)
        if again and entry["outcome"] in (None, "survived"):
            seeds = [str(judge) for judge in JUDGES if judge.kind == "seeds" and str(judge) in entry["passed"]]
            known.keep(mutant, {"outcome": None, "passed": seeds, "by": ""})
    numbered = dict(enumerate(sample, 1))
    due = {number: mutant for number, mutant in numbered.items() if known.of(mutant)["outcome"] is None}
    if not due:
        return
    copied()
    # The whole sample, judged or not: a run that continues finds its build there.
    together = {n: mutant for n, mutant in numbered.items() if not known.of(mutant).get("alone", mutant.constant)}
    binaries, guilty = built_together(together)
    for number, mutant in guilty.items():
        known.keep(mutant, known.of(mutant) | {"alone": True})
    limits: dict[Judge, int] = {}
    asked(known, {n: mutant for n, mutant in due.items() if n in together and n not in guilty}, binaries, limits)
    apart = {n: mutant for n, mutant in due.items() if n not in together or n in guilty}
    for judge in JUDGES if apart else []:
        if judge not in limits:
            limits[judge] = limit(binaries, judge)
    for number, mutant in apart.items():
        if alone := built_alone(mutant):
            asked(known, {number: mutant}, alone, limits)
        else:
            known.keep(mutant, {"outcome": "unviable", "passed": [], "by": "the compiler"})
            print(f"does not compile: {mutant.key}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the sample (1)")
    parser.add_argument("--count", type=int, default=300, help="size of the sample (300)")
    parser.add_argument("--survivors", action="store_true", help="judge survivors again, by the tests")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    parser.add_argument("--report", action="store_true", help="judge nothing")
    parser.add_argument("--json", action="store_true", help="figures as one JSON object")
    arguments = parser.parse_args()
    if sys.version_info < (3, 11):
        raise SystemExit("Python 3.11 or newer is needed")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the test that runs has to end too
    WORK.mkdir(parents=True, exist_ok=True)
    known = Known(arguments.fresh)
    mutants = listed()
    sample = sampled(mutants, arguments.seed, arguments.count)
    if not arguments.report:
        judge_all(known, sample, arguments.survivors)
    result = figures(known, sample, len(mutants))
    print(json.dumps(result, indent=1) if arguments.json else told(result))
    if not arguments.report and (result["caught_share"] < BAR or result["unexplained"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
