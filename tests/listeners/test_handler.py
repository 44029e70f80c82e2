"""What a handler may be, what it may say, and what becomes of its message."""

from __future__ import annotations

from typing import Any

import pytest

from listeners import PULL_ONLY, Bury, Done, Listener, Retry
from listeners.handler import outcomes_of
from tests.listeners.rig import QUEUE


@pytest.mark.parametrize("handler", [None, 7, lambda: None])
def test_what_takes_no_message_is_refused(handler: Any) -> None:
    """A mistake is told when the listener is made, not at the first message."""
    with pytest.raises(TypeError, match="a handler"):
        Listener("memory:x", QUEUE, handler, bridge=PULL_ONLY)


def test_outcomes_of_a_batch_are_one_per_message() -> None:
    """None means all done; another length or kind is refused, and of a list only the items that are no outcome."""
    retry, bury = Retry(3), Bury("no")
    assert outcomes_of(None, 2) == [Done(), Done()]
    assert outcomes_of([None, retry, bury, Done], 4) == [Done(), retry, bury, Done()]
    first, second, third = outcomes_of([None, 7, ValueError()], 3)
    assert first == Done() and "not int" in str(second) and "not ValueError" in str(third)
    for wrong in ([None], "ab", 7):
        with pytest.raises(TypeError):
            outcomes_of(wrong, 2)
    with pytest.raises(ValueError, match="after"):
        Retry(-1)
