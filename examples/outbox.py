"""An order in your database and its message elsewhere, both or neither.

Run it: `python examples/outbox.py sqlite+aiosqlite:///orders.db http://127.0.0.1:8470`, the second being the bridge.
In a web application the relay is entered in its lifespan, or runs in a process of its own.
"""

import asyncio
import sys

from sqlalchemy import Column, Integer, MetaData, Table
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from queuebell import open_store
from queuebell.frameworks.sqlalchemy import Outbox

metadata = MetaData()
orders = Table("orders", metadata, Column("number", Integer, primary_key=True))
outbox = Outbox(metadata)


async def main(database: str, store: str) -> None:
    engine = create_async_engine(database)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    async with open_store(store) as queues, outbox.relay(engine, queues):
        # Number 1 comes twice: its second transaction is rolled back, and its second message was never there.
        for number in (1, 2, 1):
            try:
                async with AsyncSession(engine) as session, session.begin():
                    await outbox.aput(session, "billing/orders", [f"order {number}"])
                    await session.execute(orders.insert().values(number=number))
                print(f"order {number}: taken")
            except IntegrityError:
                print(f"order {number}: known")
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
