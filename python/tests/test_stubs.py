"""The stubs have the docstrings that `help()` shows."""

import ast
import inspect
import sys
from pathlib import Path

import chiplog
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import stubs  # noqa: E402


def test_the_stubs_have_the_docstrings_of_the_package() -> None:
    stub = stubs.STUB.read_text()
    assert stub == stubs.documented(stub), "run python/stubs.py with this package installed"
    assert stubs.documented(stubs.bare(stub)) == stub


@pytest.mark.parametrize("cls, name", [("Log", ""), ("Log", "append"), ("Record", "index"), ("Client", "connect_async")])
def test_an_editor_shows_what_help_shows(cls: str, name: str) -> None:
    installed = Path(str(chiplog.__file__)).with_name("_chiplog.pyi").read_text()
    (of,) = [node for node in ast.parse(installed).body if isinstance(node, ast.ClassDef) and node.name == cls]
    members = [node for node in of.body if isinstance(node, ast.FunctionDef) and node.name == name]
    shown = ast.get_docstring(members[0] if name else of)
    assert shown == inspect.getdoc(getattr(getattr(chiplog, cls), name) if name else getattr(chiplog, cls))
