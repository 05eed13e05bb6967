"""asyncio: awaited results arrive, cancelled tasks take nothing, no call blocks the loop."""

import asyncio
import gc
import weakref
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import chiplog
import pytest
from conftest import PATIENCE, SMALL

from servers import Servers

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, PATIENCE))


def test_appends_are_awaited(tmp_path: Path) -> None:
    async def work() -> None:
        async with chiplog.Log(tmp_path, SMALL) as log:
            assert await log.append_async(b"one") == 1
            assert await log.submit(b"two") == 2
            assert await log.append_batch_async([b"three", b"four"]) == 3
            places = await asyncio.gather(*(log.append_async(b"x") for _ in range(500)))
            assert sorted(places) == list(range(5, 505))
            ticket = log.submit(b"last")
            assert list(await asyncio.gather(ticket, ticket)) == [505, 505] and ticket.done() and ticket.wait() == 505
        with pytest.raises(chiplog.ClosedError):
            await log.append_async(b"x")

    run(work())


def test_appends_wait_for_space_without_blocking_the_loop(tmp_path: Path) -> None:
    async def work() -> None:
        options = chiplog.Options(segment_bytes=1 << 20, queue_appends_max=4)
        async with chiplog.Log(tmp_path, options) as log:
            places = await asyncio.gather(*(log.append_async(b"x") for _ in range(300)))
            assert sorted(places) == list(range(1, 301))

    run(work())


def test_async_for_follows(tmp_path: Path) -> None:
    async def work() -> None:
        async with chiplog.Log(tmp_path, SMALL) as log:
            log.append(b"0")
            tail = log.tail(1)

            async def take(count: int) -> list[str]:
                got = []
                async for record in tail:
                    got.append(record.decode())
                    if len(got) == count:
                        break
                return got

            taking = asyncio.create_task(take(1000))
            for n in range(1, 1000):
                await log.append_async(str(n).encode())
            assert await taking == [str(n) for n in range(1000)]
            assert [len(batch) async for batch in log.batches()] == [1] * 1000
            assert [bytes(view) async for view in log.read(999).views()] == [b"998", b"999"]
            waiting = asyncio.ensure_future(take(1))
            await asyncio.sleep(0.05)
            tail.close()
            with pytest.raises(chiplog.ClosedError):
                await waiting

    run(work())


def test_a_cancelled_wait_takes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with chiplog.Log(tmp_path, SMALL) as log, log.tail() as tail:
            for n in range(20):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(anext(tail), 0.01)
                await log.append_async(str(n).encode())
                assert (await anext(tail)).decode() == str(n)
            waiting = asyncio.ensure_future(anext(tail))
            await asyncio.sleep(0)  # the task begins to wait
            with pytest.raises(RuntimeError, match="another task"):
                await anext(tail)
            waiting.cancel()

    run(work())


def test_the_network(servers: Servers) -> None:
    async def work() -> None:
        client = await chiplog.Client.connect_async(servers.clients)
        begin = (await client.info_async()).last + 1
        tail = client.tail(begin)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(tail), 0.2)
        async with await client.producer_async() as producer:
            places = await asyncio.gather(*(producer.append_async(b"%d" % n) for n in range(200)))
            assert places == list(range(begin, begin + 200))
            assert await producer.submit_batch([b"together", b"alone"]) == begin + 200
            producer.send(b"last")
            await producer.flush_async()
        with pytest.raises(chiplog.ClosedError):
            producer.send(b"x")
        got = []
        async for record in tail:
            got.append(record.copy())
            if len(got) == 203:
                break
        assert got == [b"%d" % n for n in range(200)] + [b"together", b"alone", b"last"]
        there = chiplog.ReaderOptions(min_index=begin + 202)
        assert [r.index async for r in client.read(begin + 200, there)] == [begin + 200, begin + 201, begin + 202]
        watch = client.watch()
        assert (await anext(watch)).last >= begin + 202
        waiting = asyncio.ensure_future(anext(tail))
        await asyncio.sleep(0.1)
        tail.close()
        with pytest.raises(chiplog.ClosedError):
            await waiting

    run(work())


def test_a_follower_is_opened_and_waited_for(tmp_path: Path, servers: Servers) -> None:
    async def work() -> None:
        async with await chiplog.Client.connect_async(servers.clients) as client:
            async with await chiplog.Follower.open_async(tmp_path / "copy", servers.clients) as follower:
                last = (await client.info_async()).last
                await follower.wait_for_async(last)
                waiting = asyncio.ensure_future(follower.wait_for_async(last + 2))
                async with await client.producer_async() as producer:
                    assert await producer.append_async(b"one") == last + 1
                    assert not waiting.done()
                    await producer.append_async(b"two")
                await waiting
                assert follower.get(last + 2).copy() == b"two"
                await client.discard_async(1)  # there is nothing below: nothing is discarded
                never = asyncio.ensure_future(follower.wait_for_async(last + 1000))
                await asyncio.sleep(0.05)
                never.cancel()
        with pytest.raises(chiplog.InvalidArgumentError):
            await chiplog.Follower.open_async(tmp_path / "other", ["no address"])

    run(work())


def test_a_log_is_waited_for(tmp_path: Path) -> None:
    async def work() -> None:
        async with chiplog.Log(tmp_path, SMALL) as log:
            waiting = asyncio.ensure_future(log.wait_for_async(3))
            for _ in range(2):
                await log.append_async(b"x")
            assert not waiting.done()
            await log.append_async(b"x")
            await waiting
            log.discard(3)
            await log.wait_for_async(1)  # discarded
            waiting = asyncio.ensure_future(log.wait_for_async(9))
            await asyncio.sleep(0.05)
        with pytest.raises(chiplog.ClosedError):
            await waiting

    run(work())


def test_each_loop_has_its_own_completions(tmp_path: Path) -> None:
    with chiplog.Log(tmp_path, SMALL) as log:
        for n in range(5):
            assert run(one(log)) == n + 1


async def one(log: chiplog.Log) -> int:
    return await log.append_async(b"x")


def test_without_a_loop(log: chiplog.Log) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        log.append_async(b"x")
    assert log.status().last_index == 0


def test_a_task_cancelled_at_the_last_moment_has_taken_nothing(tmp_path: Path) -> None:
    # A record that arrived in the loop iteration that cancelled its wait was taken and lost.
    async def work() -> None:
        async with chiplog.Log(tmp_path, SMALL) as log:
            tail = log.tail()
            got: list[bytes] = []
            for n in range(300):
                waits = asyncio.ensure_future(anext(tail))
                await asyncio.sleep(0)
                log.append(b"%d" % n)
                for _ in range(n % 5):
                    await asyncio.sleep(0)
                waits.cancel()
                try:
                    got.append((await waits).copy())
                except asyncio.CancelledError:
                    pass
            while len(got) < 300:
                got.append((await anext(tail)).copy())
            assert got == [b"%d" % n for n in range(300)]

    run(work())


def test_releasing_a_view_keeps_the_batch(tmp_path: Path) -> None:
    with chiplog.Log(tmp_path, SMALL) as log:
        log.append_batch([b"one", b"two"])
        batch = next(log.batches())
        batch.data.release()
        assert bytes(batch[1].data) == b"two" and bytes(batch.data) == b"onetwo"


def test_a_closed_loop_is_freed(tmp_path: Path) -> None:
    """A task that was never woken kept its loop and the reader's lease for ever."""
    with chiplog.Log(tmp_path, SMALL) as log:
        tail = log.tail()

        async def begin() -> None:
            waits = asyncio.ensure_future(anext(tail))
            await asyncio.sleep(0)
            assert not waits.done()
            LEFT.append(waits)

        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # the abandoned task is the point of this test
        loop.run_until_complete(begin())
        loop.close()
        LEFT.clear()
        gone = weakref.ref(loop)
        del loop
        gc.collect()
        assert gone() is None
        log.append(b"x")
        assert tail.wait(timeout=PATIENCE) and next(tail).copy() == b"x"


LEFT: list[object] = []


def test_clients_watches_and_read_only_logs_end_with_their_blocks(servers: Servers, tmp_path: Path) -> None:
    async def work() -> None:
        async with await chiplog.Client.connect_async(servers.clients) as client, client.watch() as watch:
            await anext(watch)
            waits = asyncio.ensure_future(until_it_ends(watch))
            await asyncio.sleep(0.05)
            watch.close()
            await waits
        with pytest.raises(chiplog.ClosedError):
            client.info_async()
        with chiplog.Log(tmp_path, SMALL) as log:
            async with chiplog.ReadOnlyLog(log.path) as viewer:
                tail = viewer.tail()
            with pytest.raises(chiplog.ClosedError):
                await anext(tail)

    async def until_it_ends(watch: chiplog.Watch) -> None:
        with pytest.raises(chiplog.ClosedError):
            async for _ in watch:
                pass

    run(work())


def test_an_async_call_returns_a_future_and_a_coroutine(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    async def work() -> None:
        async with chiplog.Log(tmp_path, SMALL) as log:
            assert await asyncio.create_task(log.append_async(b"1")) == 1
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(log.append_async(b"x")) for _ in range(100)]
            assert sorted(task.result() for task in tasks) == list(range(2, 102))
            pending = log.append_async(b"x")
            assert asyncio.isfuture(pending) and asyncio.iscoroutine(pending)
            assert await asyncio.wait_for(pending, PATIENCE) == await pending == pending.result() == 102
            both = [asyncio.create_task(log.append_async(b"x")), asyncio.create_task(log.append_batch_async([b"x"]))]
            done, _ = await asyncio.wait(both)
            assert {await one for one in done} == {103, 104}
            places = await asyncio.gather(log.append_async(b"x"), asyncio.shield(log.append_async(b"x")))
            assert list(places) == [105, 106]
            log.append_async(b"not awaited, but appended")
            await log.wait_for_async(107)
            assert await asyncio.create_task(anext(log.tail(5))) is not None
            assert (await asyncio.create_task(anext(log.batches(1)))).first == 1
            with pytest.raises(chiplog.TooLargeError):
                await asyncio.create_task(log.append_async(bytes(chiplog.Options().segment_bytes or 1 << 22)))

    run(work())
    gc.collect()
    assert not [w for w in recwarn if "never awaited" in str(w.message) or "never retrieved" in str(w.message)]


def test_a_cancelled_task_is_freed(tmp_path: Path) -> None:
    async def work() -> None:
        async with chiplog.Log(tmp_path, SMALL) as log:
            tail = log.tail()
            for steps in range(4):
                waits = asyncio.create_task(log.wait_for_async(1 << 40))
                comes = asyncio.create_task(anext(tail))
                for _ in range(steps):
                    await asyncio.sleep(0)
                for task in (waits, comes):
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
            log.append(b"x")
            assert (await asyncio.wait_for(asyncio.create_task(anext(tail)), PATIENCE)).copy() == b"x"
            pending = log.wait_for_async(1 << 40)
            with pytest.raises(KeyError, match="of the caller"):
                pending.throw(KeyError("of the caller"))
            assert pending.cancelled()
            pending = log.wait_for_async(1 << 40)
            pending.close()
            assert pending.cancelled()

    run(work())
