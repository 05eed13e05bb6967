"""The examples run, and the README's lines do."""

import subprocess
import sys
from pathlib import Path

import pytest
import readme
from conftest import EXAMPLES, PATIENCE


@pytest.mark.parametrize("name", ["view", "asyncio_producer", "numpy_batches"])
def test_example(name: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * PATIENCE)
    assert done.returncode == 0, done.stderr
    print(done.stdout)


@pytest.mark.parametrize("path", readme.READMES)
def test_the_readme(path: Path, tmp_path: Path) -> None:
    readme.run(path, tmp_path)
