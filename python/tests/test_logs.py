"""Many named logs in one directory of this process."""

import asyncio
import gc
import itertools
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chiplog
import pytest
from conftest import PATIENCE

GROUP = chiplog.Options(segment_bytes=256 << 10, sessions_max=16)
"""Small segments, with room for a table of logs."""


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[chiplog.Logs]:
    with chiplog.Logs(tmp_path / "logs", options=GROUP) as logs:
        yield logs


def records(log: chiplog.Log) -> list[bytes]:
    return [record.copy() for record in log.read()]


def test_logs_count_their_own_records_and_survive_a_restart(tmp_path: Path) -> None:
    for n in range(3):
        with chiplog.Logs(str(tmp_path), groups=2, options=GROUP) as logs:
            for name in ("orders", "users", "events"):
                log = logs.create(name) if n == 0 else logs.get(name)
                assert log.append(f"{name} {n}".encode()) == n + 1
                assert records(log) == [f"{name} {k}".encode() for k in range(n + 1)]
            assert [log.name for log in logs.list()] == ["events", "orders", "users"]
            assert {log.group for log in logs.list()} == {1, 2}


def test_a_named_log_has_all_calls_of_a_log(logs: chiplog.Logs) -> None:
    log, other = logs.create("a"), logs.create("b", beside="a")
    other.append(b"of another log")
    tail = log.tail()
    session = log.session()
    assert session.append(b"once") == 1
    assert log.resume_session(session.id, 1).append(b"once") == 1
    assert log.append_batch([b"two", b"three"], codec="lz4") == range(2, 4)
    assert log.submit(b"four").wait(timeout=PATIENCE) == 4
    assert tail.wait(timeout=PATIENCE) and next(tail).copy() == b"once"
    log.discard(3)
    assert records(log) == [b"three", b"four"] and log.get(4).copy() == b"four"
    with pytest.raises(chiplog.DiscardedError):
        log.get(1)
    status, info = log.status(), logs.info("a")
    assert (status.first_index, status.last_index, status.log_id) == (3, 4, info.log_id)
    assert (info.name, info.number, info.group, info.sealed) == ("a", 1, logs.info("b").group, False)
    assert (info.first_index, info.last_index) == (3, 4) and info.bytes_appended > 0
    assert info.last_timestamp == log.get(4).timestamp
    assert pickle.loads(pickle.dumps(info)) == info
    assert log.path.name == f"group-{info.group}" and log.options.segment_bytes == 256 << 10
    with pytest.raises(chiplog.InvalidArgumentError):
        log.set_log_options({"session_window": 8})


def test_names_are_listed_in_pages(logs: chiplog.Logs) -> None:
    for name in ("b/2", "a", "b/10", "c"):
        logs.create(name)

    def names(*args: Any, **named: Any) -> list[str]:
        return [log.name for log in logs.list(*args, **named)]

    assert names() == names("", "", None) == ["a", "b/10", "b/2", "c"]
    assert names(limit=3) == ["a", "b/10", "b/2"] and names(after="b/2", limit=3) == ["c"]
    assert names("b/") == names("b/", "a") == ["b/10", "b/2"] and names("b/", "b/10", 1) == ["b/2"]
    assert names(limit=0) == names(after="x") == names("nothing") == []
    for number in (-1, 1 << 64):
        with pytest.raises(chiplog.InvalidArgumentError, match=f"^limit is {number}; it has to be None, or a number from 0"):
            logs.list(limit=number)
    with pytest.raises(TypeError, match="limit is of type str"):
        logs.list(limit="1")  # type: ignore[arg-type]


def test_a_sealed_log_takes_no_appends_and_keeps_its_records(tmp_path: Path) -> None:
    with chiplog.Logs(tmp_path, options=GROUP) as logs:
        log = logs.create("a")
        log.append(b"x")
        logs.seal("a")
        logs.seal("a")
        with pytest.raises(chiplog.SealedError):
            log.append(b"y")
    with chiplog.Logs(tmp_path, options=GROUP) as logs:
        assert logs.info("a").sealed and records(logs.get("a")) == [b"x"]
        with pytest.raises(chiplog.SealedError):
            logs.get("a").append(b"y")
        with pytest.raises(chiplog.NotFoundError):
            logs.seal("b")


def test_a_deleted_log_is_gone_and_its_name_is_another_log(tmp_path: Path) -> None:
    with chiplog.Logs(tmp_path, options=GROUP) as logs:
        old = logs.create("a")
        old.append(b"old")
        reader = old.tail(1)
        with pytest.raises(chiplog.AlreadyExistsError):
            logs.create("a")
        logs.delete("a")
        assert next(reader).copy() == b"old"
        calls: list[Callable[[], object]] = [
            lambda: next(reader), lambda: old.append(b"x"), lambda: logs.get("a"), lambda: logs.info("a"),
            lambda: logs.delete("a"), lambda: logs.create("b", beside="a"),
        ]
        for call in calls:
            with pytest.raises(chiplog.NotFoundError):
                call()
        new = logs.create("a")
        assert new.append(b"new") == 1 and new.status().log_id != old.status().log_id
    with chiplog.Logs(tmp_path, options=GROUP) as logs:
        assert records(logs.get("a")) == [b"new"] and [log.number for log in logs.list()] == [2]


def test_appends_together_are_all_or_none(logs: chiplog.Logs) -> None:
    a, b, c = logs.create("a"), logs.create("b", beside="a"), logs.create("c", beside="a")
    other = logs.create("other")
    assert logs.append_together([(a, [b"1", b"2"]), (b, [b"x"]), (a, (b"3",))]) == [range(1, 3), range(1, 2), range(3, 4)]
    assert logs.append_together(((log, [b"z" * 99] * 3) for log in (a, b)), codec="zstd", timeout=PATIENCE) == [
        range(4, 7), range(2, 5),
    ]
    assert logs.append_together([]) == []
    logs.seal("c")
    pair: Any = (a, [b"no"])
    refused: list[tuple[Any, type[Exception], str | None]] = [
        ([pair, (c, [b"no"])], chiplog.SealedError, None),
        ([pair, (other, [b"no"])], chiplog.InvalidArgumentError, "of one group"),
        ([pair, (b, [])], chiplog.InvalidArgumentError, None),
        (itertools.repeat((a, [b"x" * 1000])), chiplog.TooLargeError, "block_bytes_max"),
        ([pair, (b, itertools.repeat(b""))], chiplog.TooLargeError, None),
        ([pair, a], TypeError, "pairs of a chiplog.Log and an iterable of records, not Log"),
        ([pair, ("b", [b"no"])], TypeError, "pairs of a chiplog.Log"),
        ([pair, (b, b"no")], TypeError, "iterable of records, not one of them"),
        ([pair, (b, ["no"])], TypeError, "not str"),
        (7, TypeError, "iterable"),
    ]
    for appends, error, message in refused:
        with pytest.raises(error, match=message):
            logs.append_together(appends)
    with pytest.raises(ValueError, match="codec"):
        logs.append_together([pair], codec="zip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 0"):
        logs.append_together([pair], timeout=-1)
    logs.delete("c")
    with pytest.raises(chiplog.NotFoundError):
        logs.append_together([pair, (c, [b"no"])])
    assert a.status().last_index == 6 and b.status().last_index == 4, "nothing was appended"


def test_submissions_together_have_a_ticket_each(logs: chiplog.Logs, tmp_path: Path) -> None:
    a, b, other = logs.create("a"), logs.create("b", beside="a"), logs.create("other")
    tickets = logs.submit_together([(a, [b"1", b"2"]), (b, [b"x"]), (a, (b"3",))])
    assert [ticket.wait(PATIENCE) for ticket in tickets] == [1, 1, 3]
    called: list[int] = []
    done = threading.Event()
    two = logs.try_submit_together([(b, [b"y"]), (a, [b"4"])], codec="lz4")

    def settled(ticket: chiplog.Ticket) -> None:
        called.append(ticket.wait())
        if len(called) == 2:
            done.set()

    for ticket in two:
        ticket.add_done_callback(settled)
    assert done.wait(PATIENCE) and sorted(called) == [2, 4]
    assert logs.submit_together([]) == logs.try_submit_together([]) == []
    with chiplog.Logs(tmp_path / "strangers", groups=1, options=GROUP) as strangers:
        stranger = strangers.create("a")
        for submit in (logs.submit_together, logs.try_submit_together, logs.append_together):
            with pytest.raises(chiplog.InvalidArgumentError, match="of one group"):
                submit([(a, [b"no"]), (other, [b"no"])])
            for pairs in ([(a, [b"no"]), (stranger, [b"no"])], [(stranger, [b"no"])]):
                with pytest.raises(chiplog.InvalidArgumentError, match="do not run"):
                    submit(pairs)
        assert stranger.status().last_index == 0
    logs.seal("b")
    for ticket in logs.submit_together([(a, [b"no"]), (b, [b"no"])]):
        with pytest.raises(chiplog.SealedError):
            ticket.wait(PATIENCE)
    assert a.status().last_index == 4 and b.status().last_index == 2, "nothing was appended"


def test_appends_together_are_awaited(tmp_path: Path) -> None:
    async def work() -> None:
        async with chiplog.Logs(tmp_path, groups=1, options=GROUP) as logs:
            a, b = logs.create("a"), logs.create("b")
            made = await asyncio.gather(*(logs.append_together_async([(a, [b"x"]), (b, [b"y"] * 2)]) for _ in range(20)))
            assert sorted(one.start for one, _ in made) == list(range(1, 21))
            assert all((one.start - 1) * 2 == two.start - 1 for one, two in made), "both logs have the same order"
            assert await a.append_async(b"z") == 21
            logs.seal("b")
            with pytest.raises(chiplog.SealedError):
                await logs.append_together_async([(a, [b"x"]), (b, [b"y"])])
            async with logs.get("a") as again:
                assert again.status().last_index == 21
            with pytest.raises(chiplog.ClosedError):
                again.status()
            assert a.status().last_index == 21, "the log is open"
        with pytest.raises(chiplog.ClosedError):
            await logs.append_together_async([])

    asyncio.run(asyncio.wait_for(work(), PATIENCE))
    logs = chiplog.Logs(tmp_path, options=GROUP)
    with pytest.raises(RuntimeError, match="no running event loop"):
        logs.append_together_async([])
    logs.close()


def test_closing_a_handle_leaves_its_log_open(logs: chiplog.Logs) -> None:
    with logs.create("a") as log:
        log.append(b"x")
        again = logs.get("a")
    log.close()
    assert 'Log "a" in ' in repr(log) and repr(log).endswith("closed>")
    with pytest.raises(chiplog.ClosedError, match="the log was closed"):
        log.append(b"y")
    with pytest.raises(chiplog.ClosedError):
        logs.append_together([(log, [b"y"])])
    assert again.append(b"y") == 2 and repr(again).endswith("records 1 to 2>")


def test_a_log_outlives_the_handle_of_its_directory(tmp_path: Path) -> None:
    log = chiplog.Logs(tmp_path, options=GROUP).create("a")
    gc.collect()
    assert log.append(b"the group is open") == 1
    with pytest.raises(chiplog.LockedError):
        chiplog.Logs(tmp_path, options=GROUP)
    del log
    gc.collect()
    logs = chiplog.Logs(tmp_path, options=GROUP)
    log = logs.get("a")
    tail = log.tail(1)
    logs.close()
    logs.close()
    assert repr(logs) == f'<chiplog.Logs "{tmp_path}", closed>'
    calls: list[Callable[[], object]] = [
        logs.list, lambda: logs.create("b"), lambda: logs.get("a"), lambda: logs.delete("a"), lambda: logs.seal("a"),
        lambda: logs.info("a"), lambda: logs.append_together([]),
    ]
    for call in calls:
        with pytest.raises(chiplog.ClosedError, match="the directory of logs was closed"):
            call()
    with pytest.raises(chiplog.ClosedError):
        log.append(b"y")
    assert next(tail).copy() == b"the group is open" and log.status().last_index == 1
    with pytest.raises(chiplog.ClosedError):
        next(tail)
    log.close()


def test_close_wakes_waiting_readers_and_other_threads_run_meanwhile(logs: chiplog.Logs) -> None:
    tail = logs.create("a").tail()
    ended: list[BaseException] = []

    def work() -> None:
        try:
            next(tail)
        except chiplog.ClosedError as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert logs.create("b").append(b"x") == 1 and thread.is_alive()
    logs.close()
    thread.join(PATIENCE)
    assert len(ended) == 1


def test_threads_use_it_together(logs: chiplog.Logs) -> None:
    def work(n: int) -> None:
        for k in range(5):
            log = logs.create(f"{n}/{k}")
            for _ in range(10):
                log.append(b"%d" % n)
            logs.seal(f"{n}/{k}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert [(log.last_index, log.sealed) for log in logs.list()] == [(10, True)] * 20
    assert all(set(records(logs.get(log.name))) == {log.name[0].encode()} for log in logs.list())


def test_invalid_arguments_are_named(logs: chiplog.Logs, tmp_path: Path) -> None:
    for name in ("", "_own", "a b", "a/b", "..", "x" * 250):
        with pytest.raises(chiplog.InvalidArgumentError, match="name"):
            logs.create(name)
    with pytest.raises(TypeError):
        logs.create(b"a")  # type: ignore[arg-type]
    never = tmp_path / "never"
    for groups in (-1, 0, 1025, 1 << 40, 1 << 64):
        with pytest.raises(chiplog.InvalidArgumentError, match=f"groups is {groups}; it has to be "):
            chiplog.Logs(never, groups=groups)
    with pytest.raises(TypeError, match="groups is of type str"):
        chiplog.Logs(never, groups="2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="options is a chiplog.Options, not dict"):
        chiplog.Logs(never, options={"create": True})  # type: ignore[arg-type]
    with pytest.raises(chiplog.InvalidArgumentError, match="retention"):
        chiplog.Logs(never, options=chiplog.Options(retention_age=1.0))
    assert not never.exists()
    with pytest.raises(chiplog.NotFoundError):
        chiplog.Logs(never, options=chiplog.Options(create=False))
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(logs)


def test_a_directory_holds_named_logs_or_one_log(logs: chiplog.Logs, tmp_path: Path) -> None:
    with pytest.raises(chiplog.LockedError):
        chiplog.Logs(tmp_path / "logs", options=GROUP)
    with pytest.raises(chiplog.InvalidArgumentError):
        chiplog.Log(tmp_path / "logs")
    chiplog.Log(tmp_path / "alone", GROUP).close()
    with pytest.raises(chiplog.InvalidArgumentError):
        chiplog.Logs(tmp_path / "alone", options=GROUP)


def test_more_groups_are_added_and_fewer_leave_all_there_are(tmp_path: Path) -> None:
    for groups, wanted in ((1, 1), (3, 3), (2, 3)):
        with chiplog.Logs(tmp_path, groups=groups, options=GROUP) as logs:
            for n in range(3):
                logs.create(f"{groups}/{n}").append(b"x")
            assert len({log.group for log in logs.list()}) == wanted
    with chiplog.Logs(tmp_path, options=GROUP) as logs:
        assert [log.last_index for log in logs.list()] == [1] * 9


def test_groups_are_in_several_directories(tmp_path: Path) -> None:
    disks = [tmp_path / "disk-1", tmp_path / "disk-2"]
    with pytest.raises(chiplog.InvalidArgumentError, match="does not exist"):
        chiplog.Logs(tmp_path / "logs", directories=disks, options=GROUP)
    for disk in disks:
        disk.mkdir()
    for _ in range(2):
        with chiplog.Logs(tmp_path / "logs", directories=[str(disk) for disk in disks], options=GROUP) as logs:
            assert len(logs.list()) in (0, 2)
            for name in ("orders", "users") if not logs.list() else ():
                logs.create(name).append(b"x")
    assert [(disk / f"group-{n}").is_dir() for n, disk in enumerate(disks, 1)] == [True, True]
    with pytest.raises(chiplog.DivergedError, match="list it again"):
        chiplog.Logs(tmp_path / "logs", directories=disks[:1], options=GROUP)
    with pytest.raises(TypeError):
        chiplog.Logs(tmp_path / "logs", directories=str(disks[0]), options=GROUP)


def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    program = """
import gc, os, sys
import chiplog
group = chiplog.Options(segment_bytes=256 << 10, sessions_max=16)
logs = chiplog.Logs(sys.argv[1] + "/logs", options=group)
log = logs.create("a")
log.append(b"x")
child = os.fork()
if child == 0:
    refused = [
        lambda: logs.create("b"), lambda: logs.get("a"), lambda: logs.delete("a"), lambda: logs.seal("a"), logs.list,
        lambda: logs.info("a"), lambda: logs.append_together([]), lambda: repr(logs), logs.close,
        lambda: log.append(b"y"), log.close,
    ]
    for n, call in enumerate(refused):
        try:
            call()
            os._exit(100 + n)
        except chiplog.ForkedError:
            pass
    del logs, log, refused, call
    gc.collect()  # drops them
    with chiplog.Logs(sys.argv[1] + "/own", options=group) as own:
        own.create("a").append(b"a log of the child")
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, os.waitstatus_to_exitcode(status)
assert log.append(b"the parent goes on") == 2 and logs.create("b").append(b"x") == 1
logs.close()
print("well")
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "well\n", done.stderr


def test_a_log_has_limits_of_its_own(logs: chiplog.Logs) -> None:
    log, other = logs.create("limited"), logs.create("other")
    log.set_log_options({"retention_age": 60_000, "append_bytes_per_second": 1})
    assert log.log_options() == {"retention_age": 60_000, "append_bytes_per_second": 1}
    assert other.log_options() == {}
    assert log.append(b"of any size, once") == 1
    with pytest.raises(chiplog.BusyError, match="takes 1 bytes a second") as refused:
        log.try_submit(b"x")
    assert refused.value.retry_after is not None and refused.value.retry_after > 5
    assert chiplog.BusyError().retry_after is None
    assert other.append(b"x") == 1
    with pytest.raises(chiplog.InvalidArgumentError, match="set it for the log's group"):
        log.set_log_options({"session_window": 5})
    log.set_log_options({"append_bytes_per_second": None})
    assert log.append(b"y") == 2
