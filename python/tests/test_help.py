"""The text of `help()`: each public class, call and option is documented, with all that a caller must know."""

import builtins
import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chiplog
import numpy
import pytest
from conftest import SMALL

CLASSES: list[type[Any]] = [c for c in (getattr(chiplog, name) for name in chiplog.__all__) if inspect.isclass(c)]
HANDLES = [c for c in CLASSES if c.__module__ == "chiplog"]
VALUES = [c for c in CLASSES if dataclasses.is_dataclass(c)]
OPTIONS = [c for c in VALUES if c.__name__ == "Tls" or c.__name__.endswith("Options")]
CALLS = [
    pytest.param(c, name, id=f"{c.__name__}.{name}")
    for c in HANDLES
    for name in vars(c)
    if not name.startswith("_") and callable(getattr(c, name))
]
APPENDS = [chiplog.Log.append, chiplog.Log.append_batch, chiplog.Session.append, chiplog.Session.append_batch]
UNITS = r"bytes|seconds|True or False|text|a number of|a pair|an index|a chiplog\.|\"none\"|\"map\""


def summary_and_rest(of: object) -> tuple[str, str]:
    text = inspect.getdoc(of)
    assert text, f"{of} is not documented"
    first, _, rest = text.partition("\n\n")
    return first, " ".join(rest.split())


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_and_member_is_documented(cls: type[Any]) -> None:
    assert (cls.__doc__ or "").split("\n\n")[0].rstrip().endswith("."), "a summary comes first"
    for name, member in vars(cls).items():
        if name.startswith("_") or not (callable(member) or isinstance(member, (property, classmethod, staticmethod))
                                        or inspect.isgetsetdescriptor(member)):
            continue
        assert len(inspect.getdoc(getattr(cls, name)) or "") > 10, f"{cls.__name__}.{name} is not documented"


@pytest.mark.parametrize("cls, name", CALLS)
def test_a_call_documents_what_a_caller_must_know(cls: type[Any], name: str) -> None:
    call: Callable[..., object] = getattr(cls, name)
    first, rest = summary_and_rest(call)
    assert "\n" not in first and first.endswith("."), "a summary comes first"
    whole = f"{first} {rest}"
    assert re.search(r"\bBlocks|Does not block", whole), "no word on blocking"
    assert not re.search(r"Blocks", whole) or "GIL" in whole or re.search(r"Blocks as `\w+` does", whole), "no word on the GIL"
    asynchronous = name.endswith("_async")
    assert not asynchronous or "awaited" in whole
    assert asynchronous or first.startswith(("As `", "Appends")) or re.search(r"\bReturns", whole), "no return value"
    for parameter in inspect.signature(call).parameters:
        if parameter != "self":
            assert re.search(rf"`{parameter}\b|\({parameter}\)`", whole), f"`{parameter}` is not documented"
            if parameter in ("timeout", "interval"):
                assert f"`{parameter}`: seconds, from 0" in whole
    raised = set(re.findall(r"`(\w+Error)`", whole))
    for error in raised:
        assert hasattr(chiplog, error) or hasattr(builtins, error), f"there is no {error}"
    if inspect.signature(call).parameters.keys() - {"self", "encoding", "errors"}:
        assert raised or re.search(r"[Rr]aises what|what it raises", whole), "no exceptions"


@pytest.mark.parametrize("append", [*APPENDS, chiplog.Producer.append, chiplog.Producer.append_async, chiplog.Ticket.wait,
                                    chiplog.Logs.append_together])
def test_appends_document_unknown_outcomes(append: object) -> None:
    _, rest = summary_and_rest(append)
    assert re.search(r"`TimeoutError`.*MAY (STILL )?BE", rest)
    for error in (chiplog.Error, chiplog.TimeoutError, chiplog.UnavailableError):
        assert "twice" in (error.__doc__ or "")


@pytest.mark.parametrize("cls", VALUES, ids=lambda cls: cls.__name__)
def test_every_field_is_documented_by_its_class(cls: type[Any]) -> None:
    text = inspect.getdoc(cls) or ""
    for field in dataclasses.fields(cls):
        if cls is not chiplog.Start:
            assert re.search(rf"^{field.name}(:.*)?\n(        .*\n)?    \S.{{6}}", text, re.MULTILINE), field.name
    for field in dataclasses.fields(cls) if cls in OPTIONS else ():
        if field.default is not dataclasses.MISSING:
            assert re.search(UNITS, field.metadata["takes"]), f"{field.name}: no type or unit"
            told = " ".join(text.split())
            assert f"{field.name}: {field.metadata['takes']}; default {field.metadata['default']}" in told


def test_documented_defaults_are_in_force(tmp_path: Path) -> None:
    with chiplog.Log(tmp_path) as log:
        options = log.options
    for field in dataclasses.fields(options):
        told = field.metadata["default"].partition(":")[0].partition(" (")[0].replace(",", "")
        value = getattr(options, field.name)
        shown = f'"{value}"' if isinstance(value, str) else f"{value:.12g}" if isinstance(value, float) else str(value)
        assert told == shown, field.name


def test_documented_bounds_are_enforced(tmp_path: Path) -> None:
    """Bounds that do not depend on other options."""
    bounds = {
        "segment_bytes": (65_536, 1_073_741_824),
        "queue_appends_max": (1, 16_777_216),
        "prefetch_bytes": (0, 1_073_741_824),
        "session_window": (1, 1_024),
    }
    for field in dataclasses.fields(chiplog.Options):
        if field.name in bounds:
            for bound in bounds[field.name]:
                assert f"{bound:,}" in field.metadata["takes"]
            low, high = bounds[field.name]
            for beyond in (low - 1, high + 1):
                given: dict[str, Any] = {field.name: beyond}
                with pytest.raises(chiplog.InvalidArgumentError, match=f"option {field.name} is {beyond}; it (takes|has)"):
                    chiplog.Log(tmp_path / "never", chiplog.Options(**given))
    assert not (tmp_path / "never").exists()


def test_numbers_out_of_bounds_are_named(log: chiplog.Log) -> None:
    """They raised an OverflowError without argument and bounds."""
    log.append(b"x")
    reader = log.read()
    viewer = chiplog.ReadOnlyLog(log.path)
    calls: list[tuple[str, Callable[[Any], object]]] = [
        ("index", log.get), ("index", viewer.get), ("index", log.wait_for), ("index", reader.seek), ("first", log.discard),
        ("first", log.submit_discard), ("bytes", log.check_room), ("start", log.read), ("start", log.tail),
        ("start", viewer.batches), ("id", lambda n: log.resume_session(n, 1)),
        ("next_sequence", lambda n: log.resume_session(1, n)),
        ("Start.last", lambda n: log.read(chiplog.Start.last(n))), ("Start.since", lambda n: log.read(chiplog.Start.since(n))),
    ]
    for name, call in calls:
        for number in (-1, 1 << 64):
            with pytest.raises(chiplog.InvalidArgumentError, match=rf"^{name} is {number}; it has to be .*, from [01] to \d+"):
                call(number)
        with pytest.raises(chiplog.InvalidArgumentError, match=f"{name} is -1; it has"):
            call(numpy.int64(-1))
        with pytest.raises(TypeError, match=name if name[0].islower() and name != "start" else "start|Start"):
            call("one")
    assert next(log.read(numpy.int64(1))).index == log.get(numpy.uint8(1)).index == 1  # type: ignore[arg-type]
    assert isinstance(chiplog.InvalidArgumentError("x"), ValueError)
    with pytest.raises(chiplog.InvalidArgumentError, match="timeout is -1; it has to be at least 0 seconds"):
        log.append(b"y", timeout=-1)
    assert log.status().last_index == 1


def test_wrong_types_of_options_are_named(tmp_path: Path) -> None:
    """A dict raised an AttributeError about some field."""
    calls: dict[str, Callable[[Any], object]] = {
        "options is a chiplog.Options": lambda given: chiplog.Log(tmp_path, given),
        "options is a chiplog.ClientOptions": lambda given: chiplog.Client(["127.0.0.1:1"], given),
        "options is a chiplog.FollowerOptions": lambda given: chiplog.Follower(tmp_path, ["127.0.0.1:1"], options=given),
        "option files is a chiplog.Options": lambda given: chiplog.Follower(
            tmp_path, ["127.0.0.1:1"], options=chiplog.FollowerOptions(files=given)
        ),
        "option tls is a chiplog.Tls": lambda given: chiplog.Client(["127.0.0.1:1"], chiplog.ClientOptions(tls=given)),
    }
    for message, call in calls.items():
        with pytest.raises(TypeError, match=f"{message}, not dict"):
            call({"segment_bytes": 1 << 20})
    with pytest.raises(chiplog.InvalidArgumentError, match=r"option segment_bytes is -3; it takes bytes, 65,536 "):
        chiplog.Log(tmp_path, chiplog.Options(segment_bytes=-3))
    with pytest.raises(TypeError, match="option segment_bytes is of type str; it takes bytes"):
        chiplog.Log(tmp_path, chiplog.Options(segment_bytes="1 MiB"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="option token is of type bytes; it takes text") as error:
        chiplog.Client(["127.0.0.1:1"], chiplog.ClientOptions(token=b"password"))  # type: ignore[arg-type]
    assert "password" not in str(error.value)


def test_a_log_shows_its_state_and_a_closed_one_is_closed(tmp_path: Path) -> None:
    log = chiplog.Log(tmp_path, SMALL)
    assert repr(log) == f'<chiplog.Log "{tmp_path}", empty>'
    log.append_batch([b"x", b"y"])
    assert repr(log) == f'<chiplog.Log "{tmp_path}", records 1 to 2>'
    reader = log.read()
    log.close()
    log.close()
    assert repr(log) == f'<chiplog.Log "{tmp_path}", closed>'
    assert log.path == tmp_path and log.options.create and log.poison_cause() is None
    calls: list[Callable[[], object]] = [
        log.read, log.tail, log.batches, log.status, log.metrics, log.session, log.barrier,
        lambda: log.get(1), lambda: log.wait_for(1), lambda: log.append(b"z"), lambda: log.discard(1),
        lambda: log.resume_session(1, 1), lambda: log.check_room(1),
    ]
    for call in calls:
        with pytest.raises(chiplog.ClosedError, match="the log was closed"):
            call()
    assert [record.copy() for record in reader] == [b"x", b"y"], "readers outlive it"
