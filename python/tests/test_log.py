"""A log of this process: appended records are read back."""

import dataclasses
import errno
import gc
import pickle
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import chiplog
import pytest
from conftest import PATIENCE, SMALL


def test_appended_records_are_read(log: chiplog.Log) -> None:
    assert log.append(b"one") == 1
    assert log.append_batch([b"two", bytearray(b"three"), memoryview(b"four"), b""], codec="lz4") == range(2, 6)
    assert log.submit(b"six").wait(timeout=PATIENCE) == 6
    assert log.submit_batch([b"seven"] * 100, codec="zstd").wait() == 7
    records = list(log.read())
    assert [r.index for r in records] == list(range(1, 107))
    assert [r.copy() for r in records[:6]] == [b"one", b"two", b"three", b"four", b"", b"six"]
    assert bytes(records[1]) == b"two" and len(records[1]) == 3 and records[1].decode() == "two"
    assert records[1].timestamp <= records[5].timestamp
    assert log.get(3).copy() == b"three"
    with pytest.raises(chiplog.OutOfRangeError):
        log.get(107)


def test_starts(log: chiplog.Log) -> None:
    for n in range(10):
        log.append(str(n).encode())

    def read(start: int | chiplog.Start | None) -> list[str]:
        return [r.decode() for r in log.read(start)]

    assert read(None) == read(1) == read(chiplog.Start.first()) == [str(n) for n in range(10)]
    assert read(8) == read(chiplog.Start.index(8)) == ["7", "8", "9"]
    assert read(chiplog.Start.last(2)) == ["8", "9"]
    assert read(chiplog.Start.next()) == read(11) == []
    assert read(chiplog.Start.since(log.get(4).timestamp))[-1] == "9"
    assert read(chiplog.Start.since(datetime.now(UTC) + timedelta(days=1))) == []
    with pytest.raises(chiplog.OutOfRangeError):
        log.read(12)
    with pytest.raises(TypeError, match="index or a chiplog.Start"):
        log.read("first")  # type: ignore[arg-type]


def test_a_reader_seeks_and_knows_its_position(log: chiplog.Log) -> None:
    log.append_batch([b"%d" % n for n in range(10)])
    reader = log.read()
    assert reader.position == 1
    next(reader)
    assert reader.position == 2
    assert bytes(next(reader.views())) == b"1" and next(reader.copies()) == b"2"
    rest = next(reader.batches())
    assert (rest.first, rest.last, len(rest), rest.copies()[0]) == (4, 10, 7, b"3")
    assert reader.position == 11 and next(reader, None) is None
    reader.seek(10)
    assert [r.index for r in reader] == [10]
    log.append(b"more")
    assert [r.index for r in reader] == [11], "a reader at the end continues when there is more"


def test_skipping_drops_no_record(log: chiplog.Log) -> None:
    """Only an undecodable batch is skipped."""
    log.append_batch([b"1", b"2"])
    reader = log.read()
    assert reader.skip_batch() == 1
    assert next(reader).copy() == b"1" and reader.skip_batch() == 2
    assert [r.copy() for r in reader] == [b"2"] and reader.skip_batch() == 3
    log.append(b"3")
    assert [r.copy() for r in reader] == [b"3"]


def test_a_session_whose_close_failed_can_be_closed_again(tmp_path: Path) -> None:
    """The second close did nothing, and the session stayed open in the log."""
    log = chiplog.Log(tmp_path, SMALL)
    session, other = log.session(), log.session()
    other.close()
    other.close()
    log.close()
    for _ in range(2):
        with pytest.raises(chiplog.ClosedError):
            session.close()
        assert session.next_sequence == 1
    other.close()


def test_tail_waits(log: chiplog.Log) -> None:
    tail = log.tail()
    assert not tail.wait(timeout=0)
    ticket = log.submit(b"came later")
    assert tail.wait(timeout=PATIENCE)
    assert next(tail).decode() == "came later" and ticket.wait() == 1


def test_discarded_records_are_gone(log: chiplog.Log) -> None:
    log.append_batch([b"x"] * 10)
    log.discard(6)
    assert log.status().first_index == 6
    assert [r.index for r in log.read()] == [6, 7, 8, 9, 10]
    with pytest.raises(chiplog.DiscardedError) as error:
        log.read(5)
    assert isinstance(error.value, LookupError)


def test_errors_extend_the_builtin_exceptions(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        chiplog.ReadOnlyLog(tmp_path / "none")
    assert isinstance(missing.value, chiplog.NotFoundError) and "none" in str(missing.value)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError) as refused:
        chiplog.Log(tmp_path / "file" / "log")
    assert isinstance(refused.value, chiplog.IoError) and refused.value.errno == refused.value.os_error == errno.ENOTDIR
    assert issubclass(chiplog.UnavailableError, ConnectionError)



def test_sessions_append_once(log: chiplog.Log) -> None:
    session = log.session()
    id, number = session.id, session.next_sequence
    assert session.append(b"pay 10") == 1
    assert session.append_batch([b"pay 20", b"pay 30"]) == range(2, 4)
    again = log.resume_session(id, number)
    assert again.append(b"pay 10") == 1 and again.submit_batch([b"pay 20", b"pay 30"]).wait() == 2
    assert log.status().last_index == 3 and log.status().sessions == 1
    again.close()
    assert log.status().sessions == 0
    with pytest.raises(chiplog.ClosedError):
        again.append(b"x")


def test_a_read_only_log_sees_what_another_handle_appends(log: chiplog.Log) -> None:
    viewer = chiplog.ReadOnlyLog(log.path)
    tail = viewer.tail(chiplog.Start.first())
    log.append(b"seen from outside")
    assert tail.wait(timeout=PATIENCE)
    assert next(tail).decode() == "seen from outside"
    assert viewer.get(1).copy() == b"seen from outside"
    assert viewer.status().last_index == 1 and viewer.failure() is None and viewer.members() is None


def test_a_reader_keeps_what_it_reads(tmp_path: Path) -> None:
    """A read-only log or log without other references was closed before its reader had read anything."""
    tail = chiplog.Log(tmp_path, SMALL).tail()
    gc.collect()
    assert not tail.wait(timeout=0.01)
    with pytest.raises(chiplog.LockedError):
        chiplog.Log(tmp_path, SMALL)
    tail.close()  # and releases it
    with chiplog.Log(tmp_path, SMALL) as log:
        seen = chiplog.ReadOnlyLog(tmp_path).tail()
        batches = chiplog.ReadOnlyLog(tmp_path).batches(follow=True)
        gc.collect()
        log.append(b"x")
        assert seen.wait(timeout=PATIENCE) and next(seen).copy() == b"x" and len(next(batches)) == 1


def test_status_and_metrics(log: chiplog.Log) -> None:
    log.append(b"x")
    status, metrics = log.status(), log.metrics()
    assert (status.first_index, status.last_index, status.durable_index, status.follows) == (1, 1, 1, False)
    assert metrics.records == 1 and metrics.syncs >= 1 and metrics.sync_seconds_p50 <= metrics.sync_seconds_p99
    assert (metrics.scrubbed_bytes, metrics.damaged, metrics.repaired, metrics.truncated_records) == (0, 0, 0, 0)
    assert metrics.queue_appends == 0 and log.poison_cause() is None
    assert log.barrier() == 1
    log.wait_for(1)
    with pytest.raises(chiplog.TimeoutError):
        log.wait_for(2, timeout=0)
    for value in (status, metrics):
        assert pickle.loads(pickle.dumps(value)) == value


def test_the_options_in_force_are_readable(tmp_path: Path) -> None:
    given = chiplog.Options(segment_bytes=1 << 20, retention_age=1.5, capacity_bytes=1 << 30, read_mode="read")
    with chiplog.Log(tmp_path, given) as log:
        told = log.options
    assert isinstance(told, chiplog.Options)
    assert (told.segment_bytes, told.retention_age, told.capacity_bytes) == (1 << 20, 1.5, 1 << 30)
    assert (told.read_mode, told.create, told.retention_bytes, told.queue_timeout) == ("read", True, None, 60)
    assert told.batch_bytes_max is not None and told.batch_bytes_max < 1 << 20, "it was lowered with the segment size"
    with chiplog.Log(tmp_path, told) as log:
        assert log.options == told


def test_a_ticket_says_how_durable_its_append_is(tmp_path: Path) -> None:
    with chiplog.Log(tmp_path / "log", SMALL) as log:
        ticket = log.submit(b"record")
        ticket.wait(timeout=PATIENCE)
        assert ticket.durability == "majority"
        command = log.submit_discard(1)
        command.wait(timeout=PATIENCE)
        assert command.durability is None
    stored = chiplog.Options(segment_bytes=1 << 18, object_store=f"file://{tmp_path / 'store'}", slice_interval=0.01)
    with chiplog.Log(tmp_path / "sliced", stored) as log:
        ticket = log.submit_batch([b"one", b"two"])
        ticket.wait(timeout=PATIENCE)
        assert ticket.durability == "majority+slices"
    stored = dataclasses.replace(stored, payload_slices=True)
    with chiplog.Log(tmp_path / "referred", stored) as log:
        end = time.monotonic() + PATIENCE
        while log.log_options().get("payload_slices") != 1:
            assert time.monotonic() < end
            time.sleep(0.01)
        ticket = log.submit(bytes(2000))
        ticket.wait(timeout=PATIENCE)
        assert ticket.durability == "object"


def test_older_records_are_in_an_object_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    options = chiplog.Options(
        segment_bytes=1 << 18, object_store=f"file://{store}", object_bytes=1 << 16, local_bytes=1 << 19, object_delete_delay=1.0
    )
    with chiplog.Log(tmp_path / "log", options) as log:
        for n in range(1, 1001):
            log.append(b"%d " % n * 400)
        deadline = time.monotonic() + 60
        while log.metrics().stored_bytes < 1 << 20:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        metrics = log.metrics()
        assert metrics.stored_objects > 10 and metrics.object_failures == 0 and metrics.unstored_bytes > 0
        assert log.log_options()["object_bytes"] == 1 << 16
        assert (log.options.local_bytes, log.options.object_store) == (1 << 19, None)
        assert log.get(1).copy() == b"1 " * 400
    assert list(store.glob("*/o/*"))
    for wrong in ("relative/dir", "s3://", "ftp://a/b"):
        with pytest.raises(chiplog.InvalidArgumentError, match="object_store"):
            chiplog.Log(tmp_path / "never", chiplog.Options(object_store=wrong))
    assert not (tmp_path / "never").exists()


def test_a_directory_has_one_appending_handle(log: chiplog.Log) -> None:
    with pytest.raises(chiplog.LockedError) as error:
        chiplog.Log(log.path)
    assert error.value.retryable and str(log.path) in str(error.value)


def test_a_closed_log_raises_and_its_records_stay_readable(log: chiplog.Log) -> None:
    log.append(b"x")
    reader = log.tail(1)
    log.close()
    with pytest.raises(chiplog.ClosedError):
        log.append(b"y")
    assert next(reader).copy() == b"x"
    with pytest.raises(chiplog.ClosedError):
        next(reader)


def test_a_reopened_log_has_its_records(tmp_path: Path) -> None:
    for n in range(1, 4):
        with chiplog.Log(str(tmp_path), SMALL) as log:
            assert log.append(b"x") == n


def test_a_missing_log(tmp_path: Path) -> None:
    with pytest.raises(chiplog.NotFoundError):
        chiplog.ReadOnlyLog(tmp_path / "nothing")
    with pytest.raises(chiplog.NotFoundError):
        chiplog.Log(tmp_path / "nothing", chiplog.Options(create=False))


def test_invalid_records_are_refused(log: chiplog.Log) -> None:
    with pytest.raises(TypeError, match="not str"):
        log.append("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not one of them"):
        log.append_batch(b"bytes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="codec"):
        log.append_batch([b"x"], codec="zip")  # type: ignore[arg-type]
    with pytest.raises(chiplog.InvalidArgumentError):
        log.append_batch([])
    with pytest.raises(chiplog.TooLargeError):
        log.append(bytes(2 << 20))
    with pytest.raises(ValueError, match="at least 0"):
        log.append(b"x", timeout=-1)
    assert log.status().last_index == 0


def test_corruption_names_file_and_offset(tmp_path: Path) -> None:
    with chiplog.Log(tmp_path, SMALL) as log:
        log.append(b"needle in the file")
    (file,) = [f for f in tmp_path.iterdir() if b"needle" in f.read_bytes()]
    content = file.read_bytes()
    at = content.index(b"needle")
    file.write_bytes(content[:at] + b"noodle" + content[at + 6 :])
    with pytest.raises(chiplog.CorruptError) as error:
        with chiplog.Log(tmp_path, SMALL) as log:
            list(log.read())
    assert error.value.path is not None and Path(error.value.path).name == file.name
    assert error.value.offset is not None and error.value.offset <= at
    again = pickle.loads(pickle.dumps(error.value))
    assert (type(again), again.offset, str(again)) == (chiplog.CorruptError, error.value.offset, str(error.value))


def test_no_space_in_time_is_busy_and_appends_nothing(tmp_path: Path) -> None:
    # It raised TimeoutError, which means that the append may still become durable.
    options = chiplog.Options(segment_bytes=1 << 20, queue_appends_max=1, queue_timeout=0.0)
    tickets, refused = [], 0
    with chiplog.Log(tmp_path, options) as log:
        for n in range(3000):
            try:
                tickets.append(log.submit(b"%d" % n))
            except chiplog.BusyError:
                refused += 1
        places = [ticket.wait() for ticket in tickets]
        assert refused > 0 and places == list(range(1, len(places) + 1)) and log.status().last_index == len(places)


def test_options_of_the_log_are_set_and_unset(tmp_path: Path) -> None:
    with chiplog.Log(tmp_path / "log", SMALL) as log, chiplog.ReadOnlyLog(tmp_path / "log") as viewer:
        assert log.log_options() == viewer.log_options() == {}
        window, largest = log.session_window, log.record_bytes_max
        log.set_log_options({"session_window": 5, "record_bytes_max": 1000}, timeout=PATIENCE)
        assert log.log_options() == {"session_window": 5, "record_bytes_max": 1000}
        assert (log.session_window, log.record_bytes_max) == (5, 1000)
        with pytest.raises(chiplog.TooLargeError):
            log.append(b"x" * 1001)
        log.submit_set_log_options({"session_window": None}).wait(timeout=PATIENCE)
        assert log.log_options() == {"record_bytes_max": 1000}
        log.set_log_options({"record_bytes_max": None, "retention_bytes": 2**64 - 1})
        assert log.log_options() == {"retention_bytes": 2**64 - 1}
        assert (log.session_window, log.record_bytes_max) == (window, largest)
        for wrong in ({}, {"segment_bytes": 1}, {"sessions_max": 0}, {"sessions_max": -1}, {"sessions_max": 2**64}):
            with pytest.raises(chiplog.InvalidArgumentError):
                log.set_log_options(wrong)
        for wrong_type in ({"sessions_max": "1"}, {1: 1}, [("sessions_max", 1)]):
            with pytest.raises(TypeError):
                log.set_log_options(wrong_type)  # type: ignore[arg-type]
        assert log.log_options() == {"retention_bytes": 2**64 - 1}
    with chiplog.ReadOnlyLog(tmp_path / "log") as viewer:
        assert viewer.log_options() == {"retention_bytes": 2**64 - 1}


def test_permanent_damage_is_reported(tmp_path: Path) -> None:
    with chiplog.Log(tmp_path / "log", SMALL) as log:
        log.append_batch([b"x" * 100] * 20)
        log.report_damage(1)
        assert log.shortage_cause() is None and log.metrics().damaged == 0
        segment = min((tmp_path / "log").glob("*.seg"))
        data = bytearray(segment.read_bytes())
        at = data.index(b"x" * 100)
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(b"y")
        with pytest.raises(chiplog.CorruptError, match="nobody can repair it") as error:
            log.get(1)
        assert error.value.lasting
        log.report_damage(1)
        assert log.metrics().damaged == 1
        with pytest.raises(chiplog.OutOfRangeError):
            log.report_damage(22)
