"""The completions of each running event loop, which deliver the log's wake-ups to it; and the awaitables of calls."""

import asyncio
import threading
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

from ._chiplog import _Completions

_T = TypeVar("_T")

_completions: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[_Completions]] = WeakKeyDictionary()
_lock = threading.Lock()


class Pending(asyncio.Future[_T], Coroutine[Any, Any, _T]):
    """The result of an `_async` call: the call is already in progress, and awaiting this gives its outcome.

    It is a future: `await`, `gather`, `wait_for` and `shield` accept it, more than once. It is also a coroutine, with
    `send`, `throw` and `close`, so `asyncio.create_task` and `TaskGroup.create_task` accept it. `asyncio.wait` accepts
    no coroutines: pass it the task. You need not await it: the call completes anyway, without a warning."""

    _steps: Generator[Any, None, _T] | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)

    def send(self, value: Any, /) -> Any:
        """Continues, for the task whose coroutine this is."""
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
        """The task whose coroutine this is was cancelled."""
        self.close()
        given = next((e for e in (kind, value) if isinstance(e, BaseException)), None)
        if given is None:
            assert isinstance(kind, type)
            given = kind() if value is None else kind(value)
        raise given if traceback is None else given.with_traceback(traceback)

    def close(self) -> None:
        """No task awaits it any more: as `cancel`."""
        self._steps = None
        self.cancel()


def completions(loop: asyncio.AbstractEventLoop) -> _Completions:
    """Returns the completions of this loop, which runs on this thread. Only the loop keeps them: they end with it."""
    known = _completions.get(loop)
    found = known() if known is not None else None
    if found is None:
        found = _Completions()
        loop.add_reader(found.fileno(), found.drain)
        with _lock:
            _completions[loop] = ref(found)
    return found
