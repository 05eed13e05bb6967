"""The manifest of operations, ffi/parity.toml, against the installed package and its stubs: each operation of Rust exists
here or has a reason, and the manifest lists everything that is here."""

import ast
import inspect
import tomllib
from pathlib import Path
from typing import Any

import chiplog

ROOT = Path(__file__).resolve().parents[2]
MANIFEST: dict[str, list[dict[str, Any]]] = tomllib.loads((ROOT / "ffi" / "parity.toml").read_text())


def names() -> set[str]:
    """Returns the Python names of the manifest."""
    found: set[str] = set()
    for entry in [*MANIFEST["operation"], *MANIFEST["sugar"]]:
        name = entry.get("python", [])
        found.update([name] if isinstance(name, str) else name)
    return found


def stub_names() -> set[str]:
    """Returns the classes and methods of the stubs."""
    assert chiplog.__file__ is not None
    stub = Path(chiplog.__file__).with_name("_chiplog.pyi")
    found: set[str] = set()
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
            found.update(f"{node.name}.{f.name}" for f in node.body if isinstance(f, ast.FunctionDef))
    return found


def handles() -> list[type]:
    """Returns the classes of the compiled part."""
    exported = [getattr(chiplog, name) for name in chiplog.__all__]
    return [c for c in exported if inspect.isclass(c) and c.__module__ == "chiplog"]


def test_the_package_has_what_the_manifest_lists() -> None:
    known = stub_names()
    for name in names():
        found: Any = chiplog
        for part in name.split("."):
            assert hasattr(found, part), f"{name} is in the manifest, but not in the package"
            found = getattr(found, part)
        if "." in name:
            assert name in known, f"{name} is in the manifest, but not in the stubs"
            assert found.__doc__, f"{name} is not documented"


def test_the_manifest_lists_the_package() -> None:
    named = names()
    classes = {name.split(".")[0] for name in named}
    for name in chiplog.__all__:
        is_error = inspect.isclass(getattr(chiplog, name)) and issubclass(getattr(chiplog, name), chiplog.Error)
        assert is_error or name in classes, f"{name} is public, but not in the manifest"
    assert len(handles()) == 13
    for cls in handles():
        for name in vars(cls):
            public = not name.startswith("_")
            assert not public or f"{cls.__name__}.{name}" in named, f"{cls.__name__}.{name} is not in the manifest"


def test_the_values_exist() -> None:
    """Their fields are compared with Rust's in ffi/tests/values.rs."""
    for entry in MANIFEST["value"]:
        assert "python" not in entry or inspect.isclass(getattr(chiplog, entry["python"])), entry["rust"]


def test_each_operation_has_a_name_or_a_reason() -> None:
    for entry in MANIFEST["operation"]:
        assert ("python" in entry) != ("python_absent" in entry), entry["rust"]
        assert len(entry.get("python_absent", "a reason")) >= 8, entry["rust"]
