"""The end of the program: producers that were not closed send their records, callbacks that are due are called, and
notices are logged."""

import atexit
import logging
import os
import sys
import warnings

from ._chiplog import _end

# Registered at import: functions that the program registers later run before, and can still close its producers. The end
# of `logging`, registered at its own import, runs after: notices at the end are logged.
atexit.register(_end)


def begin() -> None:
    """Runs when a process opens its first producer. Some children of multiprocessing end without `atexit`."""
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, _end, exitpriority=0)
        atexit.register(_end)


def warn(text: str) -> None:
    """Warns of a producer that was not closed. Python shows such warnings only on request, as with `python -X dev`."""
    warnings.warn(text, ResourceWarning, stacklevel=2)


def print_and_warn(text: str) -> None:
    """Reports unacknowledged records on stderr, and warns as `warn` does."""
    if sys.stderr is not None:
        print(f"chiplog: {text}", file=sys.stderr, flush=True)
    warn(text)


def drop_held_handlers() -> None:
    """Removes handlers whose lock is held from `logging`, whose end waits for each handler's lock without a limit."""
    handlers = getattr(logging, "_handlerList", [])
    handlers[:] = [handler for handler in handlers if not _is_held(handler())]


def hung(text: str) -> None:
    """Reports a `logging` handler that hangs on stderr, without the lock of `sys.stderr`, which it may hold."""
    if sys.stderr is None:
        return
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        print(f"chiplog: {text}", file=sys.stderr, flush=True)
    else:
        os.write(descriptor, f"chiplog: {text}\n".encode())


def _is_held(handler: logging.Handler | None) -> bool:
    lock = getattr(handler, "lock", None)
    if lock is None:
        return False
    if lock.acquire(blocking=False):
        lock.release()
        return False
    return True
