"""The tests that kombu has for its transports, from its own source distribution, on ours."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import kombu

from tests.support.command import ROOT, environment, serving

SUITE = """
import uuid
import kombu
import pytest
import queuebell.frameworks.celery
from t.integration.common import BaseEventLoop, BaseExchangeTypes, BaseMessage, BaseTimeToLive, BasicFunctionality

@pytest.fixture()
def connection():
    return kombu.Connection("{url}/k" + uuid.uuid4().hex[:8])

@pytest.fixture()
def invalid_connection():
    return kombu.Connection("queuebell://127.0.0.1:1")

class test_Basic(BasicFunctionality): pass
class test_Exchanges(BaseExchangeTypes): pass
class test_Loop(BaseEventLoop): pass
class test_Message(BaseMessage): pass
class test_TimeToLive(BaseTimeToLive): pass
"""


def test_the_suite_of_kombu(tmp_path: Path) -> None:
    """All but priorities, which we refuse, and failover: for us several addresses are one service."""
    lock = (ROOT / "requirements-dev.lock").read_text()
    pinned = re.search(r"^kombu==(?:.*\\\n)*.*\n", lock, re.MULTILINE)
    assert pinned is not None
    (tmp_path / "lock").write_text(pinned[0])
    download = ("download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", "kombu", "--require-hashes")
    words = [sys.executable, "-m", "pip", *download, "-r", str(tmp_path / "lock"), "-d", str(tmp_path)]
    subprocess.run(words, env=environment(), check=True, timeout=500)
    with tarfile.open(tmp_path / f"kombu-{kombu.__version__}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    with serving(tmp_path / "data") as bridge:
        (tmp_path / "test_ours.py").write_text(SUITE.replace("{url}", bridge.url.replace("http", "queuebell", 1)))
        (tmp_path / "pytest.ini").write_text("[pytest]\npython_classes = test_*\n")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider", "test_ours.py"],
            cwd=tmp_path,
            env=environment({"PYTHONPATH": f"{tmp_path}/kombu-{kombu.__version__}"}),
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0 and "26 passed" in done.stdout, done.stdout[-5000:] + done.stderr[-1000:]
