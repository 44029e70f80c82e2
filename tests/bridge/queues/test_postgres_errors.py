"""What an error of the database means for a caller."""

from __future__ import annotations

import asyncpg
import pytest

from bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    QueuebellError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from bridge.queues.postgres.errors import INIT_HINT, explain


def said(kind: type[asyncpg.PostgresError]) -> asyncpg.PostgresError:
    """An error as the server sends it: those that the client makes up carry no severity."""
    error = kind("said the server")
    error.severity = "ERROR"
    return error


@pytest.mark.parametrize(
    "kind, sent, meaning",
    [
        (asyncpg.DeadlockDetectedError, True, StoreUnavailable),
        (asyncpg.SerializationError, True, StoreUnavailable),
        (asyncpg.LockNotAvailableError, True, StoreUnavailable),
        (asyncpg.QueryCanceledError, True, StoreUnavailable),
        (asyncpg.TooManyConnectionsError, False, StoreUnavailable),
        (asyncpg.CannotConnectNowError, False, StoreUnavailable),
        (asyncpg.ReadOnlySQLTransactionError, True, StoreUnavailable),
        (asyncpg.AdminShutdownError, True, UnknownOutcome),
        (asyncpg.AdminShutdownError, False, StoreUnavailable),
        (asyncpg.DiskFullError, True, StoreFull),
        (asyncpg.UndefinedTableError, True, StoreError),
        (asyncpg.InvalidPasswordError, False, ConfigurationError),
        (asyncpg.InvalidCatalogNameError, False, ConfigurationError),
        (asyncpg.InsufficientPrivilegeError, True, StoreError),
        (asyncpg.CharacterNotInRepertoireError, True, BadInput),
        (asyncpg.CheckViolationError, True, BadInput),
        (asyncpg.SyntaxOrAccessError, True, StoreError),
    ],
)
def test_what_the_server_says_is_believed(
    kind: type[asyncpg.PostgresError], sent: bool, meaning: type[QueuebellError]
) -> None:
    """An answer says that nothing happened, unless the connection ended with it."""
    assert type(explain(said(kind), "postgres://here", sent=sent)) is meaning


@pytest.mark.parametrize(
    "error",
    [asyncpg.ConnectionDoesNotExistError("gone"), OSError("reset"), TimeoutError(), asyncpg.InterfaceError("x")],
)
def test_no_answer_is_no_news(error: Exception) -> None:
    """A request that left and was not answered may have been carried out; one that did not leave was not."""
    assert type(explain(error, "postgres://here", sent=True)) is UnknownOutcome
    assert type(explain(error, "postgres://here", sent=False)) is StoreUnavailable


def test_a_missing_table_says_what_to_do() -> None:
    """The person awake at night learns which command is missing."""
    assert INIT_HINT in str(explain(said(asyncpg.UndefinedTableError), "postgres://here", sent=True))


def test_a_database_that_is_missing_is_not_the_users_fault() -> None:
    """The server names it; what is to be done stands behind it."""
    error = explain(said(asyncpg.InvalidCatalogNameError), "jobs", sent=False)
    assert isinstance(error, ConfigurationError)
    assert "let this user in" not in str(error) and "mend the address" in str(error)
