"""`schemathesis` over the whole file, against a bridge on a data file: no fault, and no answer outside it."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import pytest

from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.service.bridge import Bridge
from tests.reference.written import OPENAPI
from tests.support.command import ROOT
from tests.support.processes import environment

CONFIG = ROOT / "tests" / "reference" / "schemathesis.toml"


async def fuzz(tmp_path: Path, file: Path, *words: str) -> tuple[int, str]:
    """Run it to its end; return its exit code and what it wrote."""
    # Streams have no end and no fuzzer waits for one: with room for none, each ends at once with the same head.
    async with (
        Bridge(tmp_path / "data") as bridge,
        WebServer(bridge, WebSettings(port=0, streams=0, shutdown_timeout=0.2)) as server,
    ):
        # The queue of the examples.
        await bridge.store.put("billing/orders", ["order 17"] * 32)
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("schemathesis")),
            "--config-file", str(CONFIG), "run", str(file), "--url", server.url, *words,
            "--generation-deterministic", "--request-timeout", "100", "--suppress-health-check", "all",
            "--max-failures", "20", "--no-color",
            cwd=tmp_path,
            env=environment(COLUMNS="120"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode is not None
    return process.returncode, said.decode(errors="replace")


def sound(caplog: pytest.LogCaptureFixture) -> bool:
    """Say whether the bridge wrote of no fault of its own."""
    return not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


async def test_every_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each operation with all that its schemas bound, at either side of each bound, and one after another."""
    code, said = await fuzz(tmp_path, OPENAPI, "--phases", "coverage,stateful", "--max-examples", "3")
    assert code == 0, said
    assert "49 selected / 49 total" in said
    assert sound(caplog)


@pytest.mark.rest
async def test_anything(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the schemas allow and what they do not, and sequences of calls."""
    code, said = await fuzz(tmp_path, OPENAPI, "--phases", "examples,fuzzing,stateful", "--max-examples", "40")
    assert code == 0, said
    assert sound(caplog)
