"""Which files are mutated together, and which tests have to notice: those of the room, and the nearest that use it.

A file belongs to the first room whose pattern finds it, so that a folder's room takes what finer rooms leave.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tests.support.command import ROOT

PACKAGES: Final = ("bridge", "listeners", "queuebell")
IN_PROCESS: Final = "not system and not long and not rest"
WITH_SYSTEM: Final = "not long and not rest"
AT_LENGTH: Final = "not system and not long"


class Room(msgspec.Struct, frozen=True):
    """Files, as patterns below the root, and their tests; a mutant is run against those that reach its function."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    marks: str = IN_PROCESS
    processes: bool = False
    """Whether the processes that its tests start run the mutant as well."""


EXCEPT: Final = {
    "queuebell/demo/**/*.py": "a demonstration, which a test runs as a whole",
    "bridge/brokers/embedded/die_with_parent.py": "starts without any package, that of the tool too",
    "queuebell/frameworks/django/migrations/**/*.py": "tables of data, which Django reads",
}
"""Product files that no room has, and why."""

_QUEUES: Final = "tests/conformance/test_queues.py"
_EXPLORED: Final = tuple(f"tests/exploration/test_{name}.py" for name in ("walks", "mutants", "empty_queue"))


def _room(name: str, files: str, tests: str, *more: str, marks: str = IN_PROCESS, processes: bool = False) -> Room:
    """Return a room; files and tests are separated by spaces, tests stand without their folder."""
    paths = tuple(f"tests/{test}" if not test.startswith("tests/") else test for test in (*tests.split(), *more))
    return Room(name, tuple(files.split()), paths, marks, processes)


ROOMS: Final = (
    _room(
        "contract",
        "bridge/contract/*.py",
        "bridge/contract bridge/core bridge/service/channels bridge/producer/test_publication.py listeners/wake",
        marks=AT_LENGTH,
    ),
    _room(
        "azure",
        " ".join(f"bridge/http/azure/{name}.py" for name in ("accounts", "auth", "exchange", "records")),
        "bridge/http/azure",
        marks=AT_LENGTH,
    ),
    _room(
        "webhooks",
        " ".join(f"bridge/http/webhooks/{name}.py" for name in ("addresses", "rules", "settings")),
        "bridge/http/webhooks/test_rules.py",
        marks=AT_LENGTH,
    ),
    _room(
        "listeners",
        "listeners/wake/*.py listeners/session/session.py listeners/work/counts.py listeners/work/lease.py "
        "listeners/work/retry.py",
        "listeners/wake listeners/session listeners/work/test_counts.py listeners/work/test_lease.py "
        "listeners/work/test_retry.py",
        *_EXPLORED,
    ),
    _room(
        "scaling",
        "listeners/scaling/processes.py listeners/scaling/scaled_queue.py",
        "listeners/scaling bridge/core/test_scalers.py",
        marks=AT_LENGTH,
    ),
    _room(
        "small",
        "bridge/producer/publication.py bridge/service/state/check.py bridge/service/state/trouble.py",
        "bridge/producer bridge/service/test_checking.py bridge/service/test_status.py bridge/http/page/test_feed.py "
        "queuebell/command/test_check.py",
        marks=AT_LENGTH,
    ),
    _room(
        "core",
        "bridge/core/*.py",
        "bridge/core bridge/service/test_checking.py "
        "bridge/service/test_plain_subscribers.py bridge/service/test_status.py",
        *_EXPLORED,
        marks=AT_LENGTH,
    ),
    _room("keda", "bridge/keda/*.py", "bridge/keda"),
    _room(
        "cluster",
        "bridge/core/cluster/*.py",
        "bridge/core/cluster exploration/cluster bridge/contract/test_cluster.py",
        marks=AT_LENGTH,
    ),
    _room(
        "access",
        "bridge/access/*.py",
        "bridge/access bridge/http/page/test_login.py bridge/http/api/test_access.py bridge/http/api/test_limits.py "
        "bridge/http/azure/test_auth.py bridge/http/server",
    ),
    _room(
        "holding",
        "listeners/work/holding.py listeners/work/settlements.py",
        "listeners/test_handler.py listeners/work conformance/test_attempts.py",
        marks=AT_LENGTH,
    ),
    _room("ledger", "listeners/work/ledger.py", "listeners/work/test_ledger.py", marks=AT_LENGTH),
    _room(
        "own_store",
        "bridge/queues/embedded/store.py",
        "bridge/queues/test_own_store.py bridge/queues/test_put_once.py bridge/queues/test_sqlite.py",
        marks=AT_LENGTH,
    ),
    _room("once", "bridge/queues/checked.py", "bridge/queues/test_put_once.py"),
    _room(
        "commits",
        "bridge/producer/outbox/table.py bridge/triggers/promises.py",
        "bridge/producer/test_outbox.py bridge/triggers/test_promises.py",
        marks=AT_LENGTH,
    ),
    _room(
        "service",
        "bridge/service/*.py bridge/service/channels/*.py bridge/service/state/*.py",
        "bridge/service bridge/http/api bridge/http/page "
        "bridge/http/webhooks bridge/triggers services/test_cluster_crossed.py listeners/session queuebell/command",
        marks=WITH_SYSTEM,
    ),
    _room(
        "api",
        "bridge/http/api/*.py",
        "bridge/http/api bridge/http/server bridge/service bridge/queues/test_http.py reference/test_openapi.py",
        f"{_QUEUES}::TestHttpStore",
    ),
    _room(
        "wire", "bridge/http/wire.py bridge/contract/calls.py", "bridge/http/test_wire.py bridge/brokers/test_wire.py"
    ),
    _room("page", "bridge/http/page/*.py", "bridge/http/page bridge/http/api/test_access.py"),
    _room(
        "server",
        "bridge/http/server/*.py bridge/http/__init__.py",
        "bridge/http/server bridge/http/azure bridge/http/api bridge/service/test_embedded_feed.py "
        "queuebell/test_many_addresses.py",
    ),
    _room("webhooks_out", "bridge/http/webhooks/*.py", "bridge/http/webhooks bridge/service/test_plain_subscribers.py"),
    _room(
        "azure_server",
        "bridge/http/azure/**/*.py",
        "bridge/http/azure",
        f"{_QUEUES}::TestAzureStore",
        f"{_QUEUES}::TestAzureStoreInRequests",
    ),
    _room(
        "embedded",
        "bridge/queues/embedded/*.py",
        " ".join(
            f"bridge/queues/test_{name}.py" for name in ("engine", "own_store", "put_once", "sqlite", "writer", "open")
        ),
        f"{_QUEUES}::TestMemoryStore",
        f"{_QUEUES}::TestSqliteStore",
    ),
    _room(
        "postgres",
        "bridge/queues/postgres/*.py",
        "conformance/test_postgres.py bridge/queues "
        "bridge/http/azure/test_on_postgres.py bridge/triggers/test_postgres.py",
        "tests/conformance/test_served.py::TestPostgresBehindTwoBridges",
        marks=WITH_SYSTEM,
    ),
    _room("redis", "bridge/queues/redis/*.py", "bridge/queues conformance/test_redis.py", marks=WITH_SYSTEM),
    _room(
        "jetstream",
        "bridge/queues/jetstream/*.py",
        "bridge/queues/test_jetstream.py bridge/queues/test_open.py",
        _QUEUES,
    ),
    _room("sqs", "bridge/queues/sqs/*.py", "bridge/queues/test_sqs.py bridge/queues/test_open.py", _QUEUES),
    _room(
        "queues_azure", "bridge/queues/azure/*.py", "bridge/queues/test_azure.py bridge/queues/test_open.py", _QUEUES
    ),
    _room("queues", "bridge/queues/*.py bridge/queues/http/*.py bridge/__init__.py", "bridge/queues", _QUEUES),
    _room(
        "producer",
        "bridge/producer/**/*.py",
        "bridge/producer bridge/triggers/test_postgres.py bridge/queues/test_postgres_transaction.py bridge/storage "
        "bridge/observe conformance/test_outboxes.py queuebell/command/test_export.py",
        marks=WITH_SYSTEM,
    ),
    _room("triggers", "bridge/triggers/*.py", "bridge/triggers", marks=WITH_SYSTEM),
    _room(
        "storage",
        "bridge/storage/**/*.py",
        "bridge/storage conformance/test_blobs.py conformance/test_tables.py",
        marks=WITH_SYSTEM,
    ),
    _room(
        "observe",
        "bridge/observe/*.py",
        "bridge/observe bridge/service/test_status.py bridge/service/test_one_exception.py bridge/core/test_scalers.py "
        "bridge/http/api bridge/triggers conformance/test_traces.py listeners/session services/test_traces.py",
    ),
    _room(
        "brokers",
        "bridge/brokers/**/*.py",
        "bridge/brokers conformance/test_brokers.py conformance/test_broker_mqtt.py conformance/test_broker_nats.py "
        "bridge/contract/test_address.py bridge/triggers",
        marks=WITH_SYSTEM,
    ),
    _room(
        "actuators",
        "listeners/scaling/**/*.py",
        "listeners/scaling listeners/test_run.py conformance/test_scalers.py conformance/test_actuators.py",
    ),
    _room("session", "listeners/session/**/*.py", "listeners/session listeners/test_listener.py listeners/test_run.py"),
    _room(
        "work",
        "listeners/work/*.py",
        "listeners/work listeners/session listeners/wake listeners/test_run.py listeners/test_pause.py "
        "listeners/test_store_limits.py listeners/test_listener.py listeners/test_pool.py "
        "bridge/observe conformance/test_attempts.py "
        "services/test_jobs.py services/test_start_stop.py services/test_traces.py queuebell/test_testing.py",
    ),
    _room(
        "worker",
        "listeners/*.py",
        "listeners/work listeners/session queuebell/test_testing.py "
        + " ".join(f"listeners/test_{name}.py" for name in ("listener", "handler", "pool", "run", "lifespan")),
    ),
    _room(
        "frameworks",
        "queuebell/frameworks/**/*.py",
        "queuebell/frameworks queuebell/test_django_relay.py queuebell/test_many_addresses.py "
        "conformance/test_outboxes.py bridge/producer/test_outbox.py",
        marks=WITH_SYSTEM,
        processes=True,
    ),
    _room("command", "queuebell/command/*.py", "queuebell/command queuebell/test_many_addresses.py", processes=True),
    _room(
        "public",
        "queuebell/*.py",
        "queuebell/test_settings.py queuebell/test_testing.py queuebell/command bridge/service/test_embedded_feed.py",
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
