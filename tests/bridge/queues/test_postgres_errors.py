"""What an error of the database means for a caller."""

from __future__ import annotations

import asyncpg
import pytest

from queuebell.bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    QueuebellError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.queues.postgres.connections import explain
from queuebell.bridge.queues.postgres.transaction import explained


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
    """An answer says that nothing happened, unless the connection ended with it; the place and its words are told."""
    ours = explain(said(kind), "postgres://here", sent=sent)
    assert type(ours) is meaning
    assert "said the server" in str(ours) or kind is asyncpg.UndefinedTableError
    assert str(ours).startswith("the database rejects a value" if meaning is BadInput else "postgres://here: ")


@pytest.mark.parametrize(
    "error",
    [asyncpg.ConnectionDoesNotExistError("gone"), OSError("reset"), TimeoutError(), asyncpg.InterfaceError("x")],
)
def test_no_answer_is_no_news(error: Exception) -> None:
    """A request that left and was not answered may have been carried out; one that did not leave was not."""
    why = str(error) or "TimeoutError"
    sent, unsent = (explain(error, "postgres://here", sent=sent) for sent in (True, False))
    assert type(sent) is UnknownOutcome
    assert str(sent) == f"postgres://here: no answer from the database: {why}"
    assert type(unsent) is StoreUnavailable
    assert str(unsent) == f"postgres://here: the database cannot be reached: {why}"


def driver(name: str, module: str, *bases: type[Exception], **told: str) -> Exception:
    """Make an error as a driver would, with what it tells beside its words."""
    error = type(name, bases or (Exception,), {"__module__": module})("said so")
    for key, value in told.items():
        setattr(error, key, value)
    return error


def wrapped(orig: Exception) -> Exception:
    """Make SQLAlchemy's error around a driver's."""
    error = driver("OperationalError", "sqlalchemy.exc")
    vars(error)["orig"] = orig
    return error


def caused(cause: Exception) -> Exception:
    """Make Django's error because of a driver's."""
    error = driver("OperationalError", "django.db.utils")
    error.__cause__ = cause
    return error


ROLLED_BACK = "nothing was put, and the transaction can only be rolled back: "


@pytest.mark.parametrize(
    ("error", "meaning", "words"),
    [
        (said(asyncpg.InFailedSQLTransactionError), "transaction_failed", "an earlier statement has failed"),
        (driver("PendingRollbackError", "sqlalchemy.exc"), "transaction_failed", "an earlier statement has failed"),
        (driver("TransactionManagementError", "django.db"), "transaction_failed", "an earlier statement has failed"),
        (driver("InterfaceError", "psycopg"), "connection_unusable", "is unusable: InterfaceError: said so: use"),
        (driver("InvalidRequestError", "sqlalchemy.exc"), "connection_unusable", "InvalidRequestError: said so: use"),
        (driver("Error", "psycopg2", pgcode="40001"), StoreUnavailable, f"{ROLLED_BACK}said so (SQLSTATE 40001)"),
        (driver("Error", "psycopg", sqlstate="57P01"), StoreUnavailable, f"{ROLLED_BACK}said so (SQLSTATE 57P01)"),
        (driver("Error", "psycopg", sqlstate="22021"), BadInput, "the database rejects a value: said so"),
        (wrapped(driver("Error", "psycopg", sqlstate="53100")), StoreFull, f"{ROLLED_BACK}said so (SQLSTATE 53100)"),
        (caused(driver("Error", "psycopg", sqlstate="42501")), StoreError, f"{ROLLED_BACK}this user has no permission"),
        (TimeoutError(), StoreUnavailable, "nothing was put within the connection's own time-out (command_timeout)"),
        (TimeoutError(110, "timed out"), StoreUnavailable, "the connection is lost, and its transaction with it"),
        (ConnectionResetError("reset"), StoreUnavailable, "with it: ConnectionResetError: reset: repeat all of it"),
        (wrapped(driver("Gone", "psycopg")), StoreUnavailable, "with it: Gone: said so: repeat all of it"),
        (
            caused(driver("OperationalError", "sqlite3")),
            StoreUnavailable,
            "the database rejected it: OperationalError: said so: roll back, and repeat all of it",
        ),
    ],
)
def test_what_a_put_on_a_callers_connection_meets(error: Exception, meaning: type[Exception] | str, words: str) -> None:
    """Whatever the driver and what wraps it, the queue is named, and whether to mend the call or do it all again."""
    with pytest.raises(QueuebellError) as caught, explained("billing/orders"):
        raise error
    if isinstance(meaning, str):
        assert isinstance(caught.value, BadInput) and caught.value.code == meaning
    else:
        assert type(caught.value) is meaning
    assert words in str(caught.value)
    assert str(caught.value).startswith("billing/orders: nothing was put") or meaning is BadInput
    assert caught.value.__cause__ is error
