"""The examples run, and the README's lines do."""

import subprocess
import sys
from pathlib import Path

import chiplog
import pytest
import readme
from conftest import EXAMPLES, PATIENCE

from servers import Servers


@pytest.mark.parametrize("name", ["view", "asyncio_producer", "numpy_batches"])
def test_example(name: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * PATIENCE)
    assert done.returncode == 0, done.stderr
    print(done.stdout)


@pytest.mark.parametrize("path", readme.READMES)
def test_the_readme(path: Path, tmp_path: Path) -> None:
    readme.run(path, tmp_path)


def test_a_view_of_what_is_gone_says_so(servers: Servers, client: chiplog.Client, tmp_path: Path) -> None:
    """It took records behind the last one that was asked for."""
    with client.producer() as producer:
        producer.append(b"gone")
        last = producer.append(b"there")
    client.discard(last)
    view = EXAMPLES.parents[1] / "examples" / "view-python" / "view.py"
    command = [sys.executable, str(view), "--cluster", ",".join(servers.clients), "--until", "1"]
    command += ["--dir", str(tmp_path / "copy"), "--db", str(tmp_path / "view.db")]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=5 * PATIENCE)
        assert done.returncode == 1 and "the log begins behind record 1" in done.stderr, done
