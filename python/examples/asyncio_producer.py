"""asyncio: a producer and a reader of servers in one event loop, next to a log of this process.

python examples/asyncio_producer.py
"""

import asyncio
import tempfile

import chiplog
from servers import Servers

SENSORS, READINGS = 8, 50


async def sense(producer: chiplog.Producer, sensor: int) -> list[int]:
    """One of many appending tasks: each waits for its own records only."""
    places = []
    for n in range(READINGS):
        places.append(await producer.append_async(f"sensor {sensor} reading {n}".encode()))
    return places


async def over_the_network(cluster: list[str]) -> None:
    async with await chiplog.Client.connect_async(cluster) as client:
        reader = client.reader(chiplog.Start.first())
        async with await client.producer_async() as producer:
            places = await asyncio.gather(*(sense(producer, n) for n in range(SENSORS)))
        seen: dict[str, int] = {}
        async for record in reader:
            sensor = record.decode().split(" reading ")[0]
            seen[sensor] = seen.get(sensor, 0) + 1
            if record.index == SENSORS * READINGS:
                break
        reader.close()
        assert all(mine == sorted(mine) for mine in places), "the records of a task are in order"
        assert seen == {f"sensor {n}": READINGS for n in range(SENSORS)}
        print(f"{sum(seen.values())} readings of {SENSORS} tasks are in the log, each once, each task's in its order")


async def embedded(dir: str) -> None:
    async with chiplog.Log(dir) as log:
        tail = log.tail(chiplog.Start.first())

        async def count() -> int:
            n = 0
            async for _ in tail:
                n += 1
                if n == 1000:
                    break
            return n

        counting = asyncio.create_task(count())
        await asyncio.gather(*(log.append_async(b"record") for _ in range(1000)))
        print(f"{await counting} records of a log in this process, appended and followed by tasks")
        tail.close()


async def main() -> None:
    with Servers() as servers:
        await over_the_network(servers.clients)
    with tempfile.TemporaryDirectory() as dir:
        await embedded(dir)


if __name__ == "__main__":
    asyncio.run(main())
