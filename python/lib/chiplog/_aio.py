"""The courier of each running event loop, which carries the log's news to it; and what calls give to await."""

import asyncio
import threading
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

from ._chiplog import _Courier

_T = TypeVar("_T")

_couriers: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[_Courier]] = WeakKeyDictionary()
_lock = threading.Lock()


class Pending(asyncio.Future[_T], Coroutine[Any, Any, _T]):
    """What an `_async` call gives: it is under way, and tells its outcome to whoever awaits it.

    A future: `await`, `gather`, `wait_for` and `shield` take it, more than once. And a coroutine, with `send`, `throw` and
    `close`, so that `asyncio.create_task` and `TaskGroup.create_task` take it too; `asyncio.wait`, which takes no coroutines,
    takes the task. Nothing has to await it: no call is left undone, and nothing warns."""

    _steps: Generator[Any, None, _T] | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)

    def send(self, value: Any, /) -> Any:
        """Goes on, for the task that it is the coroutine of."""
        if self._steps is None:
            self._steps = self.__await__()
        try:
            return self._steps.send(value)
        except BaseException:
            self._steps = None
            raise

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
        /,
    ) -> Any:
        """The task that it is the coroutine of was cancelled."""
        self.close()
        given = next((e for e in (kind, value) if isinstance(e, BaseException)), None)
        if given is None:
            assert isinstance(kind, type)
            given = kind() if value is None else kind(value)
        raise given if traceback is None else given.with_traceback(traceback)

    def close(self) -> None:
        """Nobody awaits it any more: as `cancel`."""
        self._steps = None
        self.cancel()


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
