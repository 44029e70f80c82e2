"""Every line of the log is made in these tests: pytest fails a test with a line that cannot be written."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def every_line(caplog: pytest.LogCaptureFixture) -> None:
    """Have the lines written that nobody asks for in production."""
    caplog.set_level("DEBUG", "queuebell")
