"""Runs the Python programs of the READMEs with this interpreter.

    python tests/readme.py      # in an environment with the wheel and nothing else: fails if there is more
"""

import re
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[1]
READMES = [PYTHON / "README.md", PYTHON.parent / "README.md"]


SERVERS = '["log1:7411", "log2:7411", "log3:7411"]'
"""The servers as the programs name them."""


def programs(readme: Path) -> list[str]:
    """Returns the programs of a README."""
    found = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    assert found, readme
    return found


def run(readme: Path, dir: Path, cluster: str | None = None) -> None:
    """Runs the programs of a README in `dir`: with a cluster those that need servers, else the others."""
    chosen = [program for program in programs(readme) if (SERVERS in program) == (cluster is not None)]
    assert chosen, readme
    for program in chosen:
        program = program.replace(SERVERS, repr([cluster]))
        done = subprocess.run([sys.executable, "-c", program], cwd=dir, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "prisms to Woolsthorpe" in done.stdout


def main() -> None:
    there = {distribution.metadata["Name"] for distribution in distributions()}
    assert there - {"pip", "setuptools", "wheel"} == {"chiplog"}, there
    for readme in READMES:
        with tempfile.TemporaryDirectory() as dir:
            run(readme, Path(dir))
    print("the READMEs' programs run with the wheel alone")


if __name__ == "__main__":
    main()
