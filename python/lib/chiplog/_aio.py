"""The courier of each running event loop: what carries the log's news to it."""

import asyncio
import threading
from weakref import WeakKeyDictionary

from ._chiplog import _Courier

_couriers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Courier] = WeakKeyDictionary()
_lock = threading.Lock()


def courier(loop: asyncio.AbstractEventLoop) -> _Courier:
    """The courier of this loop, which runs on this thread."""
    found = _couriers.get(loop)
    if found is None:
        found = _Courier()
        loop.add_reader(found.fileno(), found.drain)
        with _lock:
            _couriers[loop] = found
    return found
