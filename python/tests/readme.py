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


def run(readme: Path, dir: Path) -> None:
    """Runs the programs of a README in `dir`."""
    programs = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    assert programs, readme
    for program in programs:
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
