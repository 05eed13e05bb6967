"""The end of the program: producers that were not closed send what they were given, and callbacks that are due are called."""

import atexit
import sys
import warnings

from ._chiplog import _end

# With the import: what the program registers itself comes before, and can still close its producers.
atexit.register(_end)


def begin() -> None:
    """Called when a process makes its first producer. Some children of multiprocessing end without `atexit`."""
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, _end, exitpriority=0)
        atexit.register(_end)


def warn(text: str) -> None:
    """Warns of a producer that was not closed. Whoever wants to see such warnings has to ask, as with `python -X dev`."""
    warnings.warn(text, ResourceWarning, stacklevel=2)


def tell(text: str) -> None:
    """Tells of records that are not acknowledged, and warns, as `warn` does."""
    if sys.stderr is not None:
        print(f"chiplog: {text}", file=sys.stderr, flush=True)
    warn(text)
