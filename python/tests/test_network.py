"""Servers: clients, producers, readers, followers; and a leader that is killed."""

import asyncio
import itertools
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path

import chiplog
import pytest
from conftest import PATIENCE

from servers import Servers


def test_produced_records_are_read(client: chiplog.Client) -> None:
    with client.producer(chiplog.ProducerOptions(linger=0.001, codec="lz4")) as producer:
        first = producer.append(b"one")
        assert producer.submit(b"two").wait(timeout=PATIENCE) == first + 1
        assert producer.submit_batch([b"three", b"four"]).wait() == first + 2
        for n in range(1000):
            producer.send(b"%d" % n)
        producer.flush()
        assert producer.buffered_bytes == 0
    records = list(client.read(first, chiplog.ReaderOptions(min_index=first + 1003)))
    assert [r.copy() for r in records[:4]] == [b"one", b"two", b"three", b"four"]
    assert [r.index for r in records] == list(range(first, first + 1004))
    batches = client.batches(first, chiplog.ReaderOptions(min_index=first + 1003))
    assert sum(len(batch) for batch in batches) == 1004
    leader = client.reader(first, chiplog.ReaderOptions(leader=True))
    assert next(leader).index == first and leader.position == first + 1
    leader.seek(first + 3)
    assert next(leader).copy() == b"four"
    info = client.info()
    assert info.last == first + 1003 and info.leader == info.node and info.leader_address is not None
    assert client.info(stale=True).log_id == info.log_id and client.batch_bytes_max > 1 << 20


def test_an_acknowledgement_says_how_durable_the_record_is(client: chiplog.Client) -> None:
    with client.producer(chiplog.ProducerOptions(linger=0.5)) as producer:
        ticket = producer.submit(b"one")
        assert ticket.durability is None
        ticket.wait(timeout=PATIENCE)
        assert ticket.durability == "majority"
        batch = producer.submit_batch([b"two", b"three"])
        batch.wait()
        assert batch.durability == "majority"


def test_options_of_the_servers_log(client: chiplog.Client) -> None:
    assert client.log_options() == {}
    client.set_log_options({"sessions_max": 100, "retention_bytes": 2**64 - 1})
    assert client.log_options() == {"sessions_max": 100, "retention_bytes": 2**64 - 1}
    client.set_log_options({"sessions_max": None, "retention_bytes": None}, timeout=PATIENCE)
    assert client.log_options() == {}
    refused: list[dict[str, int | None]] = [{}, {"none": 1}, {"retention_age": 0}]
    for wrong in refused:
        with pytest.raises(chiplog.InvalidArgumentError):
            client.set_log_options(wrong)
    with pytest.raises(TypeError):
        client.set_log_options({"sessions_max": "many"})  # type: ignore[dict-item]


def test_a_closed_producer_returns_the_records_left(client: chiplog.Client) -> None:
    producer = client.producer()
    producer.append(b"x")
    closed = producer.close()
    assert closed.all_acknowledged and closed == producer.close()
    with pytest.raises(chiplog.ClosedError):
        producer.send(b"x")
    with pytest.raises(chiplog.TooLargeError):
        client.producer().send(bytes(100 << 20))


def test_a_session_continues_in_another_producer(client: chiplog.Client) -> None:
    session = client.open_session()
    begin = client.info().last
    crashed = client.producer(chiplog.ProducerOptions(session=(session, 1)))
    assert crashed.submit_batch([b"pay 10", b"pay 20"]).wait() == begin + 1
    # The producer did not end its session; its batches are sent again under the same numbers.
    with client.producer(chiplog.ProducerOptions(session=(session, 1))) as producer:
        assert producer.submit_batch([b"pay 10", b"pay 20"]).wait() == begin + 1
    assert client.info().last == begin + 2


def created_once_ready(client: chiplog.Client, name: str) -> None:
    """Creates a log on servers that may still be making their groups."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            client.create_log(name)
            return
        except (chiplog.UnsupportedError, chiplog.UnavailableError, chiplog.FullError):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def test_batches_of_several_logs_are_appended_together_or_not_at_all(client: chiplog.Client) -> None:
    created_once_ready(client, "pair/1")
    client.create_log("pair/2", beside="pair/1")
    one, two = client.of_log("pair/1"), client.of_log("pair/2")
    appended = chiplog.Client.append_together([(one, [b"-5"]), (two, [b"+2", b"+3"]), (one, [b"."])], codec="lz4")
    assert appended == [range(1, 2), range(1, 3), range(2, 3)]
    assert chiplog.Client.append_together([]) == []

    async def append() -> list[range]:
        return await chiplog.Client.append_together_async([(two, [b"x"]), (one, [b"y"])])

    assert asyncio.run(append()) == [range(3, 4), range(3, 4)]
    with pytest.raises(RuntimeError):
        chiplog.Client.append_together_async([(one, [b"x"])])
    client.seal_log("pair/2")
    with pytest.raises(chiplog.SealedError, match="pair/2"):
        chiplog.Client.append_together([(one, [b"x"]), (two, [b"x"])])
    with pytest.raises(chiplog.InvalidArgumentError, match="named log"):
        chiplog.Client.append_together([(one, [b"x"]), (client, [b"x"])])
    with pytest.raises(chiplog.InvalidArgumentError):
        chiplog.Client.append_together([(one, [])])
    with pytest.raises(chiplog.TooLargeError, match="256"):
        chiplog.Client.append_together((one, [b"x"]) for _ in itertools.count())
    with pytest.raises(TypeError, match=r"chiplog\.Client"):
        chiplog.Client.append_together([(b"x", [b"x"])])  # type: ignore[list-item]
    assert one.info().last == 3
    assert [record.copy() for record in one.read(1, chiplog.ReaderOptions(min_index=3))] == [b"-5", b".", b"y"]
    one.close()
    with pytest.raises(chiplog.ClosedError):
        chiplog.Client.append_together([(one, [b"x"])])


def test_named_logs_share_a_clients_connections(client: chiplog.Client) -> None:
    created_once_ready(client, "shared/1")
    assert client.create_log("shared/2").name == "shared/2"
    with pytest.raises(chiplog.AlreadyExistsError):
        client.create_log("shared/1")
    one = client.of_log("shared/1")
    with one.producer() as producer:
        assert producer.append(b"of one") == 1

    async def append_to_another() -> int:
        two = await client.of_log_async("shared/2")
        async with await two.producer_async() as producer:
            return await producer.append_async(b"of two")

    assert asyncio.run(append_to_another()) == 1
    there = chiplog.ReaderOptions(min_index=1)
    assert [r.copy() for r in one.read(1, there)] == [b"of one"]
    one.close()
    assert [r.copy() for r in client.of_log("shared/2").read(1, there)] == [b"of two"]
    with pytest.raises(chiplog.NotFoundError):
        client.of_log("shared/3")
    client.seal_log("shared/1")
    # The server that answers may follow the leader of the group, and learn of this a moment later.
    wanted = [("shared/1", 1, True), ("shared/2", 1, False)]
    end = time.monotonic() + PATIENCE
    while [(log.name, log.last_index, log.sealed) for log in client.list_logs("shared/")] != wanted:
        assert time.monotonic() < end, list(client.list_logs("shared/"))
        time.sleep(0.05)
    client.delete_log("shared/1")
    assert [log.name for log in client.list_logs("shared/")] == ["shared/2"]


def test_a_watch_reports_changes(client: chiplog.Client) -> None:
    watch = client.watch(interval=0.01)
    before = next(watch)
    with client.producer() as producer:
        index = producer.append(b"x")
    told = before
    while told.last < index:
        told = next(watch)
    assert told.first == before.first


def test_a_follower_has_the_servers_records(servers: Servers, client: chiplog.Client, tmp_path: Path) -> None:
    with client.producer() as producer:
        index = producer.append(b"followed")
    files = chiplog.Options(segment_bytes=4 << 20)
    with chiplog.Follower(tmp_path, cluster=servers.clients, options=chiplog.FollowerOptions(files=files)) as copy:
        copy.wait_for(index, timeout=PATIENCE)
        assert copy.get(index).copy() == b"followed" and next(copy.batches(index)).last == index
        status = copy.status()
        assert status.server in servers.clients and status.last >= index and status.stopped is None
        assert copy.log_status().follows and copy.path == tmp_path
        assert copy.metrics().records > 0 and copy.metrics().queue_appends == 0 and copy.poison_cause() is None
        assert copy.options.segment_bytes == 4 << 20
        assert pickle.loads(pickle.dumps(status)) == status
        event = copy.next_event(timeout=PATIENCE)
        assert event.kind == "connected" and event.server in servers.clients
        tail = copy.tail()
        with client.producer() as producer:
            index = producer.append(b"came later")
        assert next(tail).index == index
    with pytest.raises(chiplog.ClosedError):
        next(tail)
    closed: list[Callable[[], object]] = [copy.read, copy.log_status, copy.metrics, lambda: copy.get(index)]
    for call in closed:
        with pytest.raises(chiplog.ClosedError, match="the follower was closed"):
            call()
    assert copy.status().last >= index and copy.path == tmp_path and copy.poison_cause() is None
    # It continues at its position, from files, without a server.
    with chiplog.Follower(tmp_path, cluster=["127.0.0.1:1"]) as copy:
        assert copy.get(index).copy() == b"came later"
    with pytest.raises(chiplog.InvalidArgumentError):
        bad = chiplog.FollowerOptions(keep_alive=0.0)
        chiplog.Follower(tmp_path / "new", cluster=servers.clients, options=bad)
    with pytest.raises(chiplog.InvalidArgumentError, match="leave out one of them"):
        bad = chiplog.FollowerOptions(files=chiplog.Options(object_store=str(tmp_path / "store")), served_objects=True)
        chiplog.Follower(tmp_path / "new", cluster=servers.clients, options=bad)
    # The servers have no object store, and the log no objects: the option changes nothing.
    served = chiplog.FollowerOptions(files=files, served_objects=True)
    with chiplog.Follower(tmp_path / "new", cluster=servers.clients, options=served) as copy:
        copy.wait_for(index, timeout=PATIENCE)
        assert copy.get(index).copy() == b"came later"


def test_a_read_only_log_of_a_servers_files_returns_its_members(servers: Servers) -> None:
    members = chiplog.ReadOnlyLog(servers.dir / "server-1").members()
    assert members is not None and [member.node for member in members] == [1, 2, 3]
    assert all(member.is_voter and not member.is_leaving and member.directory for member in members)
    assert all(peer in member.address for peer, member in zip(servers.peers, members, strict=True))
    assert pickle.loads(pickle.dumps(members)) == members


def test_no_server_answers() -> None:
    options = chiplog.ClientOptions(timeout=0.2)
    with pytest.raises((chiplog.UnavailableError, chiplog.TimeoutError)) as error:
        chiplog.Client(["127.0.0.1:1"], options)
    assert error.value.retryable
    with pytest.raises(chiplog.InvalidArgumentError):
        chiplog.Client(["no port"])
    with pytest.raises(chiplog.InvalidArgumentError):
        chiplog.Client([])
    with pytest.raises(TypeError, match="not one text"):
        chiplog.Client("127.0.0.1:7411")


def test_clients_survive_the_death_of_the_leader(tmp_path: Path) -> None:
    """In its own cluster: producer, reader and follower continue, and each record is there once."""
    with Servers() as servers:
        client = chiplog.Client(servers.clients)
        follower = chiplog.Follower(tmp_path, cluster=servers.clients)
        got: list[bytes] = []

        def read() -> None:
            for record in client.reader():
                got.append(record.copy())
                if len(got) == 4000:
                    return

        reading = threading.Thread(target=read)
        reading.start()
        with client.producer() as producer:
            for n in range(2000):
                producer.send(b"%d" % n)
            servers.kill(servers.leader())
            for n in range(2000, 4000):
                producer.send(b"%d" % n)
        reading.join(PATIENCE)
        follower.wait_for(4000, timeout=PATIENCE)
        expected = [b"%d" % n for n in range(4000)]
        assert got == expected and [r.copy() for r in follower.read()] == expected
        follower.close()


def test_one_task_at_a_time_takes_an_event(servers: Servers, tmp_path: Path) -> None:
    async def work() -> None:
        async with chiplog.Follower(tmp_path, cluster=servers.clients) as copy:
            never = asyncio.ensure_future(copy.next_event_async())
            never.cancel()
            with pytest.raises(asyncio.CancelledError):
                await never
            assert (await copy.next_event_async()).kind == "connected"
            waits = asyncio.ensure_future(copy.next_event_async())
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another task"):
                await copy.next_event_async()
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            again = asyncio.ensure_future(copy.next_event_async())  # the wait is free again
            await asyncio.sleep(0)
            assert not again.done()
            again.cancel()

    asyncio.run(asyncio.wait_for(work(), PATIENCE))
