"""A real Prometheus for tests, on a port of its own, which scrapes and judges twice a second."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.support.brokers import RealBroker
from tests.support.processes import ROOT, until

OBSERVE: Final = ROOT / "deploy" / "observe"
WITHIN_S: Final = 100.0
"""Less than a test may take, so that it fails by saying what did not come."""


class Prometheus(RealBroker):
    """Runs on the ``configuration`` that it is given, which names its rules by their whole path."""

    kind = "prometheus"

    def __init__(self, folder: Path, configuration: str) -> None:
        super().__init__(folder)
        (folder / "prometheus.yml").write_text(configuration)

    def command(self) -> list[str]:
        binary = shutil.which(self.kind)
        assert binary, "no prometheus: see .ci/packages"
        return [
            binary, f"--config.file={self.folder / 'prometheus.yml'}", f"--storage.tsdb.path={self.store}",
            f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn",
        ]  # fmt: skip

    async def _answers(self, port: int) -> bool:
        # It listens before it can be asked.
        if not await super()._answers(port):
            return False
        async with aiohttp.ClientSession() as asking, asking.get(f"http://127.0.0.1:{port}/-/ready") as answer:
            return answer.status == 200

    async def ask(self, path: str, **query: str) -> Any:
        """Return the data that its API answers with; an error of a query fails the test in its own words."""
        async with aiohttp.ClientSession() as asking:
            async with asking.get(f"http://127.0.0.1:{self.port}/api/v1/{path}", params=query) as answer:
                told = await answer.json()
        assert told["status"] == "success", f"{query}: {told}"
        return told["data"]

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression gives now."""
        found: list[dict[str, Any]] = (await self.ask("query", query=expression))["result"]
        return found

    async def has(self, expression: str) -> list[dict[str, Any]]:
        """Wait until an expression gives something, and return it."""
        found: list[dict[str, Any]] = await until(
            lambda: self.query(expression), f"{expression} gives something", WITHIN_S
        )
        return found

    async def fires(self, alert: str, **labels: str) -> dict[str, Any]:
        """Wait until an alert fires with these labels, and return it."""

        async def firing() -> dict[str, Any] | None:
            alerts = (await self.ask("alerts"))["alerts"]
            wanted = {"alertname": alert, **labels}
            return next((each for each in alerts if wanted.items() <= each["labels"].items()), None)

        found: dict[str, Any] = await until(firing, f"{alert} fires for {labels}", WITHIN_S)
        return found
