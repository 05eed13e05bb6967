"""Options, starts and errors: complete, read and picklable; handles are not."""

import builtins
import copy
import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chiplog
import pytest
from chiplog import _chiplog, _errors


def test_each_kind_of_error_has_a_class() -> None:
    """Names, numbers and flags are those of Rust."""
    kinds = _chiplog._error_kinds()
    assert [code for _, code, _, _ in kinds] == sorted(_errors.BY_CODE) == list(range(1, len(kinds) + 1))
    for name, code, retryable, fatal in kinds:
        error = _errors.BY_CODE[code]
        camel = "".join(part.capitalize() for part in name.split("_")) + "Error"
        assert (error.__name__, error.kind, error.retryable, error.fatal) == (camel, name, retryable, fatal)
        assert getattr(chiplog, camel) is error and issubclass(error, chiplog.Error) and error.__doc__
        assert pickle.loads(pickle.dumps(error("why"))).args == ("why",)
    assert issubclass(chiplog.TimeoutError, builtins.TimeoutError)


OPTIONS: dict[type[Any], Callable[[Any, Path], object]] = {
    chiplog.Options: lambda given, dir: chiplog.Log(dir, given),
    chiplog.ClientOptions: lambda given, dir: chiplog.Client(["127.0.0.1:1"], given),
    chiplog.FollowerOptions: lambda given, dir: chiplog.Follower(dir, ["127.0.0.1:1"], options=given),
    chiplog.Tls: lambda given, dir: chiplog.Client(["127.0.0.1:1"], chiplog.ClientOptions(tls=given)),
}


def fields(classes: Any) -> list[Any]:
    return [pytest.param(c, f.name, id=f"{c.__name__}.{f.name}") for c in classes for f in dataclasses.fields(c)]


class Unreadable:
    """A value that no option accepts."""


@pytest.mark.parametrize("options, name", fields(OPTIONS))
def test_every_option_is_read(options: type[Any], name: str, tmp_path: Path) -> None:
    fixed = {"authority": b""} if options is chiplog.Tls and name != "authority" else {}
    with pytest.raises((TypeError, ValueError, AttributeError)) as error:
        OPTIONS[options](options(**fixed, **{name: Unreadable()}), tmp_path)
    assert name in str(error.value) or "Unreadable" in str(error.value)


@pytest.mark.parametrize("options, name", fields([chiplog.ProducerOptions, chiplog.ReaderOptions]))
def test_every_option_of_a_client_is_read(options: type[Any], name: str, client: chiplog.Client) -> None:
    call: Callable[[Any], object] = client.producer if options is chiplog.ProducerOptions else (
        lambda given: client.read(None, given)
    )
    with pytest.raises((TypeError, ValueError), match=name):
        call(options(**{name: Unreadable()}))


def test_options_out_of_bounds_are_named(tmp_path: Path, client: chiplog.Client) -> None:
    with pytest.raises(chiplog.InvalidArgumentError, match="segment_bytes is 1"):
        chiplog.Log(tmp_path, chiplog.Options(segment_bytes=1))
    with pytest.raises(ValueError, match="read_mode"):
        chiplog.Log(tmp_path, chiplog.Options(read_mode="other"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="queue_timeout"):
        chiplog.Log(tmp_path, chiplog.Options(queue_timeout=-1.0))
    with pytest.raises(ValueError, match="not both"):
        client.read(1, chiplog.ReaderOptions(leader=True, zone="a"))
    with pytest.raises(TypeError, match="together"):
        chiplog.Client(["127.0.0.1:1"], chiplog.ClientOptions(tls=chiplog.Tls(authority=b"", key=b"")))


def test_configuration_and_positions_are_pickled_and_handles_are_not(log: chiplog.Log, client: chiplog.Client) -> None:
    log.append(b"x")
    secret = chiplog.ClientOptions(token="password", tls=chiplog.Tls(authority=b"a", key=b"private"))
    assert "password" not in repr(secret) and "private" not in repr(secret)
    values = [
        chiplog.Options(segment_bytes=1 << 20),
        secret,
        chiplog.ProducerOptions(session=(1, 2)),
        chiplog.ReaderOptions(zone="a"),
        chiplog.FollowerOptions(files=chiplog.Options(create=True)),
        chiplog.Start.last(5),
        log.read().position,
        client.info(),
    ]
    for value in values:
        assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value
    reader = log.read()
    handles = [log, reader, reader.views(), next(reader), log.session(), log.submit(b"x"), client, client.producer()]
    for handle in [*handles, chiplog.ReadOnlyLog(log.path)]:
        with pytest.raises((TypeError, ValueError), match="not pickled"):
            pickle.dumps(handle)


def test_follower_event_keeps_every_field() -> None:
    jumped = chiplog.FollowerEvent(kind="jumped", first=5, due=3)
    assert (jumped.first, jumped.due, jumped.missed) == (5, 3, None)
    names = ["kind", "server", "server_before", "first", "due", "error", "missed"]
    assert [field.name for field in dataclasses.fields(jumped)] == names
