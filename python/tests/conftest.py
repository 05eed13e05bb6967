"""Shared fixtures: small logs, and one cluster of three servers for all tests that need the network."""

import sys
from collections.abc import Iterator
from pathlib import Path

import chiplog
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

from servers import Servers  # noqa: E402

SMALL = chiplog.Options(segment_bytes=1 << 20)
PATIENCE = 60.0
"""Time limit in seconds for operations that take a moment on an idle machine."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[chiplog.Log]:
    with chiplog.Log(tmp_path / "log", SMALL) as log:
        yield log


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with Servers() as servers:
        yield servers


@pytest.fixture
def client(servers: Servers) -> chiplog.Client:
    return chiplog.Client(servers.clients)
