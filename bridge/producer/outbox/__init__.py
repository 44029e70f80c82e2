"""The transactional outbox: messages committed with the application's own data, then put to a store.

`Relay` puts the rows of a table (`table.py`) to a store; an `OutboxDatabase` connects it to the application's database.
"""
