"""Writes the docstrings of the compiled classes to the stubs, lib/chiplog/_chiplog.pyi: editors then show them.

    python python/stubs.py      # needs the installed package; tests/test_stubs.py fails if they differ
"""

import ast
import inspect
from pathlib import Path

import chiplog

STUB = Path(__file__).parent / "lib" / "chiplog" / "_chiplog.pyi"


def docstring(node: ast.ClassDef | ast.FunctionDef) -> ast.Expr | None:
    """Returns the docstring of a class or function of the stubs."""
    first = node.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return first if is_text and isinstance(first, ast.Expr) else None


def nodes(tree: ast.Module) -> list[tuple[ast.ClassDef | ast.FunctionDef, object]]:
    """Returns the public nodes of the stubs, each with its object in the package."""
    found: list[tuple[ast.ClassDef | ast.FunctionDef, object]] = []
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        cls = getattr(chiplog, node.name)
        found.append((node, cls))
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                found.append((member, getattr(cls, member.name)))
    return found


def bare(stub: str) -> str:
    """Returns the stubs without docstrings."""
    lines = stub.split("\n")
    for node, _ in reversed(nodes(ast.parse(stub))):
        if (text := docstring(node)) is None:
            continue
        assert text.end_lineno is not None
        end = text.end_lineno if isinstance(node, ast.FunctionDef) else text.end_lineno + 1  # an empty line follows
        del lines[text.lineno - 1 : end]
        if isinstance(node, ast.FunctionDef):
            lines[text.lineno - 2] += " ..."
    return "\n".join(lines)


def documented(stub: str) -> str:
    """Returns the stubs with the docstrings of the installed package."""
    stub = bare(stub)
    lines = stub.split("\n")
    for node, of in reversed(nodes(ast.parse(stub))):
        indent = " " * (node.col_offset + 4)
        told = inspect.cleandoc(getattr(of, "__doc__", None) or "")
        assert told, node.name
        assert '"""' not in told and "\\" not in told, node.name
        text = [indent + line if line else "" for line in f'"""{told}"""'.split("\n")]
        if isinstance(node, ast.FunctionDef):
            end = node.body[-1].lineno - 1
            lines[end] = lines[end].removesuffix(" ...")
            lines[end + 1 : end + 1] = text
        else:
            first = node.body[0]
            begin = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))]) - 1
            lines[begin:begin] = [*text, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    STUB.write_text(documented(STUB.read_text()))
