"""Records are buffers and not `bytes`; ids and positions of a log look the same everywhere."""

import gc
import hashlib
import io
import json
import os
import pickle
import struct
from pathlib import Path

import chiplog
import numpy as np
import pytest
from conftest import SMALL
from test_views import address


def test_consumers_of_buffers_accept_a_record(log: chiplog.Log, tmp_path: Path) -> None:
    log.append(pickle.dumps({"a": 1}))
    log.append(struct.pack("<iq", 3, 4))
    log.append("{\"text\": \"Æther\"}".encode())
    pickled, packed, text = log.read()
    assert pickle.loads(pickled) == {"a": 1}
    assert struct.unpack("<iq", packed) == (3, 4) and np.frombuffer(memoryview(packed), "u1").size == 12
    assert hashlib.sha256(packed).digest() == hashlib.sha256(bytes(packed)).digest()
    assert b"".join([packed, packed]) == packed.copy() * 2 and io.BytesIO(packed).read() == bytes(packed)
    assert json.loads(text.decode()) == {"text": "Æther"}
    index = log.append(packed)
    assert log.get(index).copy() == packed.copy()
    assert log.append_batch([packed, text]) == range(index + 1, index + 3)


def test_a_record_is_not_bytes(log: chiplog.Log) -> None:
    """The head of src/handles/batch/record.rs says why."""
    log.append(b"{}")
    record = log.get(1)
    assert not isinstance(record, (bytes, bytearray, str)) and record.__class__ is chiplog.Record
    with pytest.raises(TypeError, match="not Record"):
        json.loads(record)  # type: ignore[arg-type]


def test_the_view_of_a_record_is_no_copy_and_holds_it(tmp_path: Path) -> None:
    log = chiplog.Log(tmp_path, SMALL)
    log.append_batch([b"to", b"be"])
    record = log.get(2)
    view = memoryview(record)
    assert view.readonly and (view.format, view.ndim, len(view)) == ("B", 1, 2)
    assert address(view) == address(record.data)
    del record
    for _ in range(20):
        log.append(os.urandom(1 << 17))
    log.discard(log.status().last_index)
    log.close()
    del log
    gc.collect()
    assert view.tobytes() == b"be"
    log = chiplog.Log(tmp_path)
    log.append(b"")
    assert memoryview(log.get(log.status().last_index)).nbytes == 0


def test_ids_have_the_common_form(log: chiplog.Log, client: chiplog.Client) -> None:
    for state in (log.status(), chiplog.ReadOnlyLog(log.path).status(), client.info(), client.info(stale=True)):
        assert isinstance(state.log_id, str) and len(state.log_id) == 32 and int(state.log_id, 16) > 0
    assert len(log.status().directory_id) == 32
    assert client.info().log_id == client.info(stale=True).log_id


def test_a_tail_has_its_start(log: chiplog.Log, client: chiplog.Client) -> None:
    log.append_batch([b"one", b"two"])
    tail = log.tail()
    assert (tail.start, tail.position) == (3, 3) and repr(tail) == "<chiplog.Reader from 3, next 3>"
    log.append(b"three")
    assert next(tail).index == 3 and (tail.start, tail.position) == (3, 4)
    assert log.read().start == 1 and log.tail(2).start == 2 and log.read(chiplog.Start.last(2)).start == 2
    with client.producer() as producer:
        producer.append(b"before")
        remote = client.tail(options=chiplog.ReaderOptions(leader=True))
        assert remote.start is None and "not known yet" in repr(remote)
        remote.wait(0.5)
        while remote.start is None:
            remote.wait(0.5)
        assert remote.start == client.info().last + 1
        index = producer.append(b"after")
        assert next(remote).index == index == remote.start
