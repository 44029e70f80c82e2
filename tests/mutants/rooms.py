"""Which files are mutated together, and which tests have to notice: those of the room, and the nearest that use it.

A file belongs to the first room whose pattern finds it, so that a folder's room takes what finer rooms leave.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tests.support.command import ROOT

PACKAGES: Final = ("bridge", "listeners", "queuebell")
IN_PROCESS: Final = "not system and not long and not prove"
WITH_SYSTEM: Final = "not long and not prove"
AT_LENGTH: Final = "not system and not long"


class Room(msgspec.Struct, frozen=True):
    """Files, as patterns below the root, and their tests; a mutant is run against those that reach its function."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()
    """Tests among those that need files the copy lacks, or start processes where these have no say."""
    marks: str = IN_PROCESS
    processes: bool = False
    """Whether the processes that its tests start run the mutant as well."""


EXCEPT: Final = {
    "queuebell/demo/**/*.py": "a demonstration, which a test runs as a whole",
    "bridge/http/server/overload/shed.py": "goes with the change of the wire",
    "bridge/brokers/embedded/die_with_parent.py": "starts without any package, that of the tool too",
    "queuebell/frameworks/django/migrations/**/*.py": "tables of data, which Django reads",
}
"""Product files that no room has, and why."""

_QUEUES: Final = "tests/conformance/test_queues.py"
_SAID: Final = ("tests/docs/test_stores.py", "tests/bridge/queues/test_opened.py")
"""What each store says of itself before it is connected."""
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
        marks=AT_LENGTH,
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
        marks=AT_LENGTH,
    ),
    Room(
        "webhooks",
        tuple(f"bridge/http/webhooks/{name}.py" for name in ("addresses", "handshake", "rules", "settings", "signing")),
        tuple(
            f"tests/bridge/http/webhooks/test_{name}.py"
            for name in ("addresses", "handshake", "rules", "settings", "signing")
        ),
        marks=AT_LENGTH,
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
        marks=AT_LENGTH,
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
        marks=AT_LENGTH,
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
        marks=AT_LENGTH,
    ),
    Room(
        "keda",
        ("bridge/core/keda/*.py",),
        ("tests/bridge/core/keda", "tests/bridge/service/keda/test_watching.py"),
    ),
    Room(
        "cluster",
        ("bridge/core/cluster/*.py",),
        ("tests/bridge/core/cluster", "tests/exploration/test_cluster.py", "tests/bridge/contract/test_cluster.py"),
        marks=AT_LENGTH,
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
        marks=AT_LENGTH,
    ),
    Room(
        "ledger",
        ("listeners/work/ledger.py",),
        tuple(
            f"tests/listeners/test_{name}.py" for name in ("ledger_rules", "ledger", "ledger_batches", "ledger_keys")
        ),
        marks=AT_LENGTH,
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
        marks=AT_LENGTH,
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
        marks=AT_LENGTH,
    ),
    Room(
        "service",
        ("bridge/service/*.py", "bridge/service/channels/*.py"),
        (
            "tests/bridge/service",
            "tests/bridge/http/api",
            "tests/bridge/http/page",
            "tests/bridge/http/webhooks/test_shell.py",
            "tests/bridge/triggers/test_cluster.py",
            "tests/services/test_cluster_crossed.py",
        ),
        ("tests/bridge/service/test_elsewhere_jetstream.py",),
        marks=WITH_SYSTEM,
    ),
    Room("keda_port", ("bridge/service/keda/*.py",), ("tests/bridge/service/keda",)),
    Room("openapi", ("bridge/http/api/openapi/*.py",), ("tests/reference",)),
    Room(
        "api",
        ("bridge/http/api/*.py",),
        (
            "tests/bridge/http/api",
            *(f"tests/bridge/http/server/test_{name}.py" for name in ("guard", "fuzz", "many_names")),
            "tests/bridge/http/server/overload/test_answer_room.py",
            *(f"tests/bridge/service/test_{name}.py" for name in ("checking", "elsewhere", "plain_subscribers")),
            "tests/bridge/service/access/test_listing.py",
            "tests/bridge/queues/test_http.py",
            "tests/reference/test_openapi.py",
            f"{_QUEUES}::TestHttpStore",
        ),
    ),
    Room(
        "page",
        ("bridge/http/page/*.py",),
        ("tests/bridge/http/page", "tests/bridge/http/api/test_access.py", "tests/bridge/http/api/test_slices.py"),
    ),
    Room(
        "server",
        ("bridge/http/server/**/*.py", "bridge/queues/aiohttp_private/*.py", "bridge/http/__init__.py"),
        (
            "tests/bridge/http/server",
            "tests/bridge/http/azure/test_azure_connections.py",
            "tests/bridge/http/azure/test_principal_limits.py",
            *(f"tests/bridge/http/api/test_{name}.py" for name in ("access", "app", "ingress", "limits", "native")),
            *(f"tests/bridge/http/api/test_{name}.py" for name in ("put_once", "access_attacks", "sse")),
            "tests/bridge/service/test_put_gate.py",
            "tests/queuebell/test_many_addresses.py",
        ),
    ),
    Room(
        "webhooks_out",
        ("bridge/http/webhooks/*.py",),
        ("tests/bridge/http/webhooks", "tests/bridge/service/test_plain_subscribers.py"),
    ),
    Room(
        "azure_server",
        ("bridge/http/azure/**/*.py",),
        ("tests/bridge/http/azure", f"{_QUEUES}::TestAzureStore", f"{_QUEUES}::TestAzureStoreInRequests"),
    ),
    Room(
        "embedded",
        ("bridge/queues/embedded/*.py",),
        (
            *(
                f"tests/bridge/queues/test_{name}.py"
                for name in ("engine", "own", "own_store", "put_once", "reserve", "sqlite", "sqlite_file")
            ),
            *(f"tests/bridge/queues/test_{name}.py" for name in ("sqlite_together", "tally", "recount", "full_disk")),
            *(f"tests/bridge/queues/test_{name}.py" for name in ("embedded_corners", "upkeep", "memory", "writer")),
            *(f"tests/bridge/queues/test_{name}.py" for name in ("put_blocks", "headers", "first_start", "strict")),
            f"{_QUEUES}::TestMemoryStore",
            f"{_QUEUES}::TestSqliteStore",
        ),
    ),
    Room(
        "postgres",
        ("bridge/queues/postgres/*.py",),
        (
            "tests/conformance/test_postgres.py",
            "tests/bridge/queues/test_postgres.py",
            *(f"tests/bridge/queues/test_postgres_{name}.py" for name in ("errors", "headers", "marks", "short_calls")),
            *(f"tests/bridge/queues/test_postgres_{name}.py" for name in ("transaction", "voice", "pinned")),
            *(f"tests/bridge/queues/test_postgres_{name}.py" for name in ("once_in_transaction", "large_batches")),
            "tests/bridge/queues/test_put_once_elsewhere.py",
            "tests/bridge/http/azure/test_on_postgres.py",
            "tests/bridge/triggers/test_postgres.py",
            "tests/conformance/test_served.py::TestPostgresBehindTwoBridges",
        ),
        marks=WITH_SYSTEM,
    ),
    Room(
        "redis",
        ("bridge/queues/redis/*.py",),
        (
            *(f"tests/bridge/queues/test_{name}.py" for name in ("redis", "redis_troubles", "put_once_elsewhere")),
            *(f"tests/bridge/queues/test_{name}.py" for name in ("not_the_leader", "extras")),
            "tests/conformance/test_redis.py",
        ),
        marks=WITH_SYSTEM,
    ),
    Room(
        "jetstream",
        ("bridge/queues/jetstream/*.py",),
        (
            "tests/bridge/queues/test_jetstream.py",
            f"{_QUEUES}::TestJetStreamStore",
            f"{_QUEUES}::TestJetStreamStoreInRequests",
            *_SAID,
        ),
    ),
    Room(
        "sqs",
        ("bridge/queues/sqs/*.py",),
        (
            "tests/bridge/queues/test_sqs.py",
            f"{_QUEUES}::TestSqsStore",
            f"{_QUEUES}::TestSqsStoreInRequests",
            *_SAID,
        ),
    ),
    Room(
        "queues_azure",
        ("bridge/queues/azure/*.py",),
        (
            "tests/bridge/queues/test_azure.py",
            "tests/bridge/queues/test_azure_account.py",
            f"{_QUEUES}::TestAzureStore",
            f"{_QUEUES}::TestAzureStoreInRequests",
            *_SAID,
        ),
    ),
    Room(
        "queues",
        ("bridge/queues/*.py", "bridge/__init__.py"),
        ("tests/bridge/queues", "tests/conformance/test_queues.py"),
        ("tests/bridge/queues/test_jetstream.py", "tests/bridge/queues/test_sqs.py"),
    ),
    Room(
        "producer",
        ("bridge/producer/**/*.py",),
        (
            "tests/bridge/producer",
            "tests/bridge/triggers/test_postgres.py",
            "tests/bridge/queues/test_put_once_elsewhere.py",
            "tests/bridge/queues/test_postgres_transaction.py",
            "tests/bridge/queues/test_postgres_once_in_transaction.py",
            "tests/bridge/storage/test_claim_check.py",
            "tests/bridge/observe/test_tracing.py",
            "tests/conformance/test_outboxes.py",
            "tests/listeners/test_partitions.py",
            "tests/queuebell/test_many_addresses.py",
            "tests/queuebell/command/test_replay.py",
        ),
        marks=WITH_SYSTEM,
    ),
    Room("triggers", ("bridge/triggers/*.py",), ("tests/bridge/triggers",), marks=WITH_SYSTEM),
    Room(
        "storage",
        ("bridge/storage/**/*.py",),
        ("tests/bridge/storage", "tests/conformance/test_blobs.py", "tests/conformance/test_tables.py"),
        marks=WITH_SYSTEM,
    ),
    Room(
        "observe",
        ("bridge/observe/*.py",),
        (
            "tests/bridge/observe",
            *(f"tests/bridge/service/test_{name}.py" for name in ("counts", "jobs", "one_exception")),
            "tests/bridge/core/test_scalers.py",
            "tests/bridge/http/api/test_slices.py",
            "tests/bridge/triggers/test_supervisor.py",
            "tests/conformance/test_traces.py",
            "tests/docs/test_site.py",
            *(f"tests/listeners/{name}.py" for name in ("session/test_one_exception", "work/test_instruments")),
            "tests/services/test_traces.py",
        ),
    ),
    Room(
        "brokers",
        ("bridge/brokers/**/*.py",),
        (
            "tests/bridge/brokers",
            *(f"tests/conformance/test_{name}.py" for name in ("brokers", "broker_addresses", "broker_mqtt")),
            *(f"tests/conformance/test_{name}.py" for name in ("broker_nats", "broker_tls")),
            "tests/bridge/contract/test_address.py",
            "tests/bridge/http/server/test_certificates.py",
            "tests/bridge/queues/test_postgres_pinned.py",
            "tests/bridge/triggers/test_attachment.py",
            "tests/bridge/triggers/test_postgres.py",
        ),
        marks=WITH_SYSTEM,
    ),
    Room(
        "actuators",
        ("listeners/scaling/**/*.py",),
        (
            *(f"tests/listeners/test_{name}.py" for name in ("scaler", "output")),
            *(f"tests/conformance/test_{name}.py" for name in ("scalers", "actuators")),
        ),
    ),
    Room(
        "session",
        ("listeners/session/**/*.py",),
        (
            "tests/listeners/session",
            "tests/listeners/test_listener.py",
            "tests/listeners/test_pause.py",
            "tests/listeners/test_key.py",
        ),
    ),
    Room(
        "work",
        ("listeners/work/*.py",),
        (
            "tests/listeners",
            "tests/bridge/observe/test_tracing.py",
            "tests/conformance/test_attempts.py",
            *(f"tests/services/test_{name}.py" for name in ("jobs", "start_stop", "traces")),
            "tests/queuebell/test_testing.py",
        ),
        ("tests/listeners/core",),
    ),
    Room(
        "worker", ("listeners/*.py",), ("tests/listeners", "tests/queuebell/test_testing.py"), ("tests/listeners/core",)
    ),
    Room(
        "frameworks",
        ("queuebell/frameworks/**/*.py",),
        (
            "tests/queuebell/frameworks",
            "tests/queuebell/test_django_relay.py",
            "tests/queuebell/test_many_addresses.py",
            "tests/conformance/test_outboxes.py",
            "tests/bridge/producer/outbox/test_relay.py",
        ),
        marks=WITH_SYSTEM,
        processes=True,
    ),
    Room(
        "command",
        ("queuebell/command/*.py",),
        ("tests/queuebell/command", "tests/queuebell/test_many_addresses.py", "tests/docs/test_site.py"),
        processes=True,
    ),
    Room(
        "public",
        ("queuebell/*.py",),
        (
            *(f"tests/queuebell/test_{name}.py" for name in ("settings", "testing", "names")),
            *(f"tests/queuebell/command/test_{name}.py" for name in ("check", "check_answers", "main", "refused")),
            *(f"tests/queuebell/command/test_serve{name}.py" for name in ("", "_azure", "_cluster", "_keda", "_relay")),
            *(f"tests/queuebell/command/test_serve_{name}.py" for name in ("store", "webhooks")),
            "tests/bridge/http/azure/test_principals.py",
            "tests/bridge/service/test_put_gate.py",
            "tests/docs/test_site.py",
        ),
        marks=WITH_SYSTEM,
        processes=True,
    ),
)


def product() -> set[str]:
    """Return every file of the product."""
    return {file for package in PACKAGES for file in _found(f"{package}/**/*.py")}


def files(room: Room) -> list[str]:
    """Return the files of a room: those that its patterns find, without those of the rooms before it."""
    before = ROOMS[: ROOMS.index(room)]
    taken = {file for other in before for pattern in other.files for file in _found(pattern)} | exceptions()
    return sorted({file for pattern in room.files for file in _found(pattern)} - taken)


def exceptions() -> set[str]:
    """Return the files of the product that are in no room on purpose."""
    return {file for pattern in EXCEPT for file in _found(pattern)}


def _found(pattern: str) -> set[str]:
    return {file.relative_to(ROOT).as_posix() for file in ROOT.glob(pattern)}
