"""Runs the READMEs' Python lines with the interpreter at hand.

    python tests/readme.py      # in an environment that has the wheel and nothing else: fails where there is more
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
"""As the programs that need servers name them."""


def programs(readme: Path) -> list[str]:
    """The programs of a README."""
    found = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    assert found, readme
    return found


def run(readme: Path, dir: Path, cluster: str | None = None) -> None:
    """Runs the programs of a README in `dir`: those that need no servers, or with a cluster those that do."""
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
    print("the READMEs' lines run with the wheel alone")


if __name__ == "__main__":
    main()
