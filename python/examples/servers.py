"""Three servers on this machine for the examples, each a process of `chiplog serve`: starts, kills and removes them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

PATIENCE = 60.0
"""Time limit in seconds for operations that take a moment on an idle machine."""


def program() -> str:
    """Returns the command: `CHIPLOG`, one on the path, or one built in this tree."""
    tree = Path(__file__).resolve().parents[2] / "target"
    built = [tree / "release" / "chiplog", tree / "debug" / "chiplog"]
    found = os.environ.get("CHIPLOG") or shutil.which("chiplog") or next((str(p) for p in built if p.exists()), None)
    if not found:
        raise SystemExit("no chiplog command found: run cargo install --locked --path server, or set CHIPLOG=path")
    return found


class Servers:
    """Three servers of one cluster, in a temporary directory."""

    def __init__(self, *, dir: Path | None = None, segment: str = "4MiB") -> None:
        self.program = program()
        self.segment = segment
        self.dir = Path(tempfile.mkdtemp(prefix="chiplog-python-", dir=dir))
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(9)]
        ports = [s.getsockname()[1] for s in sockets]
        for s in sockets:
            s.close()
        self.clients = [f"127.0.0.1:{port}" for port in ports[0::3]]
        self.peers = [f"127.0.0.1:{port}" for port in ports[1::3]]
        self.pages = [f"127.0.0.1:{port}" for port in ports[2::3]]
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for node in (1, 2, 3):
                self.start(node)
            self.command("member", "init", self.clients[0])
            for client in self.clients[1:]:
                self.command("member", "add", client, "--cluster", self.clients[0], "--promote")
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def start(self, node: int) -> None:
        """Starts a server and waits until it answers."""
        n = node - 1
        settings = [
            f"listen.client={self.clients[n]}",
            f"listen.peer={self.peers[n]}",
            f"listen.http={self.pages[n]}",
            f"log.segment_bytes={self.segment}",
            "cluster.election_timeout_millis=1500",
            "cluster.heartbeat_millis=100",
            "groups=1",
        ]
        command = [self.program, "serve", "--node", str(node), "--data", str(self.dir / f"server-{node}")]
        for setting in settings:
            command += ["--set", setting]
        with (self.dir / f"server-{node}.log").open("ab") as said:
            self.running[node] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        end = time.monotonic() + PATIENCE
        while not self.alive(n):
            if self.running[node].poll() is not None or time.monotonic() > end:
                raise RuntimeError((self.dir / f"server-{node}.log").read_text())
            time.sleep(0.02)

    def alive(self, n: int) -> bool:
        try:
            with urlopen(f"http://{self.pages[n]}/livez", timeout=5) as page:
                return bool(page.status == 200)
        except (URLError, OSError):
            return False

    def command(self, *args: str) -> str:
        """Runs a command of the program. Returns its output."""
        done = subprocess.run([self.program, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"chiplog {' '.join(args)}: {done.stderr}")
        return done.stdout

    def leader(self) -> int:
        """Returns the leader; waits for one."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            running = [self.clients[node - 1] for node in self.running]
            try:
                leader = json.loads(self.command("status", *running, "--json"))["leader"]
            except RuntimeError:
                leader = None
            if leader in self.running:
                return int(leader)
            time.sleep(0.05)
        raise RuntimeError("nobody leads")

    def kill(self, node: int) -> None:
        """Kills a server with SIGKILL, which the process cannot handle."""
        server = self.running.pop(node)
        server.send_signal(signal.SIGKILL)
        server.wait()

    def end(self) -> None:
        for server in self.running.values():
            server.kill()
            server.wait()
        self.running.clear()
        shutil.rmtree(self.dir, ignore_errors=True)
