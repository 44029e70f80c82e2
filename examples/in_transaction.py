"""An order and its message, both or neither: `python examples/in_transaction.py postgres://app@db/jobs`.

The tables of the queue are made by `queuebell queue init postgres://app@db/jobs --notify`. Where calls block, as with
psycopg, SQLAlchemy's `Session` or Django, `put_in_transaction(connection, "billing/orders", [...])` does the same.
"""

import asyncio
import sys

import asyncpg  # type: ignore[import-untyped]

from queuebell import open_store

URL = sys.argv[1]


async def main() -> None:
    connection = await asyncpg.connect(URL)
    await connection.execute("CREATE TABLE IF NOT EXISTS orders (number int PRIMARY KEY)")
    async with open_store(URL) as store:
        # Number 1 comes twice: its second transaction is rolled back, and its second message was never there.
        for number in (1, 2, 1):
            try:
                async with connection.transaction():
                    await store.put("billing/orders", [f"order {number}"], connection=connection)
                    await connection.execute("INSERT INTO orders VALUES ($1)", number)
                print(f"order {number}: taken")
            except asyncpg.UniqueViolationError:
                print(f"order {number}: known")
        depth = await store.depth("billing/orders")
        print(f"messages: {depth.visible if depth else 0}")
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
