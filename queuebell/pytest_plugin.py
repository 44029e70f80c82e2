"""A plugin for pytest: ``pytest_plugins = ["queuebell.pytest_plugin"]`` in a ``conftest.py`` brings `rehearsal`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from queuebell.testing import Rehearsal


@pytest.fixture
def rehearsal() -> Iterator[Rehearsal]:
    """A bridge, its queue and listeners in one process, with a clock that the test moves (`queuebell.testing`)."""
    from queuebell.testing import Rehearsal

    with Rehearsal() as made:
        yield made
