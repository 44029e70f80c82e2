"""The tests that Dramatiq has for its Redis broker, from its own source distribution, on ours."""

from __future__ import annotations

from pathlib import Path

from tests.queuebell.frameworks.celery.test_suite import ran, unpacked
from tests.support.command import serving

COMMON = """
import contextlib
import dramatiq

@contextlib.contextmanager
def worker(*given, **named):
    made = dramatiq.Worker(*given, **named)
    made.start()
    try:
        yield made
    finally:
        made.stop()
"""
CONFTEST = """
import uuid
import dramatiq
import pytest
from queuebell.frameworks.dramatiq import QueuebellBroker
from .common import worker

@pytest.fixture()
def redis_broker():
    broker = QueuebellBroker("{url}", account="d" + uuid.uuid4().hex[:8])
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()

@pytest.fixture()
def redis_worker(redis_broker):
    with worker(redis_broker, worker_timeout=100, worker_threads=8) as made:
        yield made
"""
APPLY = (
    "can_be_sent_messages", "retry_with_backoff_on_failure", "can_retry_multiple_times", "have_their_messages_delayed",
    "independent_of_each_other", "can_join_with_timeout", "can_flush_queues", "given_an_invalid_attribute",
)  # fmt: skip
"""The others read Redis, or call what only that broker has."""


def test_the_suite_of_dramatiq(tmp_path: Path) -> None:
    source = unpacked("dramatiq", tmp_path)
    with serving(tmp_path / "data") as bridge:
        (source / "tests/__init__.py").touch()
        (source / "tests/common.py").write_text(COMMON)
        (source / "tests/conftest.py").write_text(CONFTEST.replace("{url}", bridge.url))
        words = ("-c", "/dev/null", "--rootdir", str(source), str(source / "tests/test_redis.py"))
        assert f"{len(APPLY)} passed" in ran(source, source, *words, "-k", " or ".join(APPLY))
