"""Puts tasks one at a time, with quiet between them: ``python -m bench.programs.producer PROGRAM`` (bench.role)."""

from __future__ import annotations

import asyncio
import importlib
import random
import sys
import time
from contextlib import asynccontextmanager
from inspect import isawaitable

from bench.role import obey

SHARE = 0.2
"""So much shorter or longer each pause is, so that no rhythm of a poll falls in step with it."""


async def main(program: str) -> None:
    """Open the program's producer, and put when told to."""
    producing = asynccontextmanager(importlib.import_module(f"bench.programs.{program}").producing)
    async with producing() as one:

        async def put(count: int, pause_s: float) -> list[float]:
            answered = []
            for _ in range(count):
                begun = time.monotonic_ns()
                made = one(str(begun))
                if isawaitable(made):
                    await made
                answered.append((time.monotonic_ns() - begun) / 1e6)
                await asyncio.sleep(pause_s * random.uniform(1 - SHARE, 1 + SHARE))
            return answered

        await obey({"put": put})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
