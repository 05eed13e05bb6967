"""The examples run, and the README's lines do."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import EXAMPLES, PATIENCE


@pytest.mark.parametrize("name", ["view", "asyncio_producer", "numpy_batches"])
def test_example(name: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * PATIENCE)
    assert done.returncode == 0, done.stderr
    print(done.stdout)


@pytest.mark.parametrize("readme", [EXAMPLES.parent / "README.md", EXAMPLES.parents[1] / "README.md"])
def test_the_readme(readme: Path, tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    assert programs
    for program in programs:
        done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "prisms to Woolsthorpe" in done.stdout
