"""Fields that tell of themselves: what `help()` shows of a class of plain values stands beside its fields and nowhere else,
and what is wrong with an option is told in the same words."""

import inspect
import textwrap
from dataclasses import field, fields
from typing import Any, TypeVar

_T = TypeVar("_T")
_WIDTH = 100


def option(takes: str, default: str, text: str, *, repr: bool = True) -> Any:
    """A field that is None unless it is given: what it takes, with unit and bounds; what None stands for; what it is."""
    return field(default=None, repr=repr, metadata={"takes": takes, "default": default, "text": text})


def told(text: str) -> dict[str, str]:
    """The metadata of a field of which this is to be told."""
    return {"text": text}


def needed(takes: str, text: str) -> dict[str, str]:
    """The same of an option that has no default."""
    return {"takes": takes, "default": "none, it has to be given", "text": text}


def documented(cls: type[_T]) -> type[_T]:
    """Adds its fields to what is told of a class."""
    parts = [inspect.cleandoc(cls.__doc__ or ""), ""]
    for each in fields(cls):  # type: ignore[arg-type]
        of = each.metadata
        head = f"{each.name}: {of['takes']}; default {of['default']}" if "takes" in of else each.name
        parts.append(textwrap.fill(head, _WIDTH, subsequent_indent=" " * 8))
        parts.append(textwrap.fill(of["text"], _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4))
    cls.__doc__ = "\n".join(parts)
    return cls
