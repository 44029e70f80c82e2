"""Which files are mutated together, and which tests have to notice: those of the room, and the nearest that use it."""

from __future__ import annotations

from typing import Final

import msgspec


class Room(msgspec.Struct, frozen=True):
    """Files, as globs below the root, and their tests; a mutant is run against those that reach its function."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]


_LISTENERS_PS: Final = ("patience", "periods", "pool", "scaling", "settle")
"""Rules of the listener whose names begin as those of the scaler do, which has a room of its own."""

ROOMS: Final = (
    Room(
        "contract",
        ("bridge/contract/*.py",),
        (
            "tests/bridge/contract",
            "tests/bridge/core",
            "tests/bridge/brokers/test_prefix.py",
            "tests/bridge/service/channels/test_brokered.py",
            "tests/bridge/producer/test_publication.py",
            "tests/bridge/http/api/test_cloudevents.py",
            "tests/listeners/core",
        ),
    ),
    Room(
        "azure",
        tuple(
            f"bridge/http/azure/{name}.py" for name in ("accounts", "address", "auth", "policies", "sas", "signature")
        ),
        tuple(
            f"tests/bridge/http/azure/test_{name}.py"
            for name in ("accounts", "address", "auth", "policies", "policy_bodies", "sas", "service_rules")
        ),
    ),
    Room(
        "webhooks",
        tuple(f"bridge/http/webhooks/{name}.py" for name in ("addresses", "handshake", "rules", "settings", "signing")),
        tuple(
            f"tests/bridge/http/webhooks/test_{name}.py"
            for name in ("addresses", "handshake", "rules", "settings", "signing")
        ),
    ),
    Room(
        "listeners",
        ("listeners/core/[!ps]*.py", *(f"listeners/core/{name}.py" for name in _LISTENERS_PS)),
        ("tests/listeners/core",),
    ),
    Room(
        "scaling",
        ("listeners/core/processes.py", "listeners/core/scaled_queue.py"),
        (
            "tests/listeners/core/test_processes.py",
            "tests/listeners/core/test_scaled_queue.py",
            "tests/bridge/core/test_scalers.py",
        ),
    ),
    Room(
        "small",
        (
            "bridge/producer/turns.py",
            "bridge/producer/publication.py",
            "bridge/service/checking.py",
            "bridge/service/trouble.py",
        ),
        (
            *(f"tests/bridge/producer/test_{name}.py" for name in ("turns", "publication", "partitions")),
            "tests/bridge/service/test_checking.py",
            "tests/bridge/service/test_trouble.py",
            "tests/queuebell/command/test_check_answers.py",
        ),
    ),
    Room(
        "core",
        ("bridge/core/*.py",),
        (
            "tests/bridge/core",
            "tests/bridge/service/test_explaining.py",
            "tests/bridge/service/test_plain_subscribers.py",
            "tests/bridge/service/test_status.py",
        ),
    ),
    Room(
        "keda",
        ("bridge/core/keda/*.py",),
        ("tests/bridge/core/keda", "tests/bridge/service/keda/test_watching.py"),
    ),
    Room(
        "cluster",
        ("bridge/core/cluster/*.py",),
        ("tests/bridge/core/cluster", "tests/simulation/test_cluster.py", "tests/bridge/contract/test_cluster.py"),
    ),
    Room(
        "access",
        ("bridge/service/access/*.py",),
        ("tests/bridge/service/access",),
    ),
    Room(
        "holding",
        ("listeners/work/holding.py", "listeners/work/settlements.py"),
        (
            "tests/listeners/test_handler.py",
            *(
                f"tests/listeners/work/test_{name}.py"
                for name in ("settlements", "holding", "attempts", "burying", "dequeue", "jobs", "renewing", "trouble")
            ),
        ),
    ),
    Room(
        "ledger",
        ("listeners/work/ledger.py",),
        tuple(
            f"tests/listeners/test_{name}.py" for name in ("ledger_rules", "ledger", "ledger_batches", "ledger_keys")
        ),
    ),
    Room(
        "own_store",
        ("bridge/queues/embedded/own_store.py",),
        (
            "tests/bridge/queues/test_own_store.py",
            "tests/bridge/queues/test_own.py",
            "tests/bridge/queues/test_put_once.py",
            "tests/bridge/queues/test_sqlite.py",
        ),
    ),
    Room(
        "once",
        ("bridge/queues/missing.py", "bridge/queues/checked_once.py"),
        ("tests/bridge/queues/test_missing.py", "tests/bridge/queues/test_checked_once.py"),
    ),
    Room(
        "commits",
        ("bridge/producer/outbox/pace.py", "bridge/producer/outbox/rows.py", "bridge/triggers/promises.py"),
        (
            "tests/bridge/producer/outbox/test_pace.py",
            "tests/bridge/producer/outbox/test_rows.py",
            "tests/bridge/triggers/test_promises.py",
        ),
    ),
)
