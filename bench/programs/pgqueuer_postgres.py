"""PgQueuer. Worker: ``python -m bench.programs.pgqueuer_postgres``, after ``pgq install``.

Its own ``pgq run`` ends at once with the typer of our lock (`'str' object has no attribute 'name'`).
"""

import asyncio
import os

import psycopg
from pgqueuer import PgQueuer
from pgqueuer.db import PsycopgDriver
from pgqueuer.queries import Queries

from bench.programs.sample import sample


async def connect():
    return PsycopgDriver(await psycopg.AsyncConnection.connect(os.environ["SERVER"], autocommit=True))


async def main():
    pgq = PgQueuer(await connect())

    @pgq.entrypoint("handle")
    async def handle(job):
        sample(job.payload)

    await pgq.run()


async def producing():
    queries = Queries(await connect())
    yield lambda stamp: queries.enqueue("handle", stamp.encode())


if __name__ == "__main__":
    asyncio.run(main())
