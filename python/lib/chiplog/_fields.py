"""Self-documenting fields: the text that `help()` shows for a class of plain values is written next to its fields only,
and errors about an option use the same words."""

import inspect
import textwrap
from dataclasses import field, fields
from typing import Any, TypeVar

_T = TypeVar("_T")
_WIDTH = 100


def option(takes: str, default: str, text: str, *, repr: bool = True) -> Any:
    """A field that is None unless it is set: its valid values with unit and bounds, the meaning of None, its text."""
    return field(default=None, repr=repr, metadata={"takes": takes, "default": default, "text": text})


def doc(text: str) -> dict[str, str]:
    """The metadata of a field with this text."""
    return {"text": text}


def needed(takes: str, text: str) -> dict[str, str]:
    """The metadata of an option without a default."""
    return {"takes": takes, "default": "none, it must be set", "text": text}


def documented(cls: type[_T]) -> type[_T]:
    """Adds the texts of its fields to the docstring of a class."""
    parts = [inspect.cleandoc(cls.__doc__ or ""), ""]
    for each in fields(cls):  # type: ignore[arg-type]
        of = each.metadata
        head = f"{each.name}: {of['takes']}; default {of['default']}" if "takes" in of else each.name
        parts.append(textwrap.fill(head, _WIDTH, subsequent_indent=" " * 8))
        parts.append(textwrap.fill(of["text"], _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4))
    cls.__doc__ = "\n".join(parts)
    return cls
