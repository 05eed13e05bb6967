"""The courier of each running event loop: what carries the log's news to it."""

import asyncio
import threading
from weakref import WeakKeyDictionary, ref

from ._chiplog import _Courier

_couriers: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[_Courier]] = WeakKeyDictionary()
_lock = threading.Lock()


def courier(loop: asyncio.AbstractEventLoop) -> _Courier:
    """The courier of this loop, which runs on this thread. The loop alone keeps it, so that it ends when that is closed."""
    known = _couriers.get(loop)
    found = known() if known is not None else None
    if found is None:
        found = _Courier()
        loop.add_reader(found.fileno(), found.drain)
        with _lock:
            _couriers[loop] = ref(found)
    return found
