"""Procrastinate. Worker: ``procrastinate --app=bench.programs.procrastinate_postgres.app worker``.

After ``schema --apply``.
"""

import os

import procrastinate

from bench.programs.sample import sample

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["SERVER"]))


@app.task(name="handle")
async def handle(stamp):
    sample(stamp)


async def producing():
    async with app.open_async():
        yield lambda stamp: handle.defer_async(stamp=stamp)
