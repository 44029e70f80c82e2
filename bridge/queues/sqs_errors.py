"""What an error of SQS, or of the way there, means. Imports botocore: itself imported only by a store in use."""

from __future__ import annotations

from typing import Any, Final

from botocore.exceptions import (  # type: ignore[import-untyped]
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
)

from bridge.contract.errors import (
    ConfigurationError,
    QueuebellError,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)

_NO_QUEUE: Final = frozenset({"QueueDoesNotExist", "NonExistentQueue"})
_LATER: Final = frozenset(
    {
        "KmsThrottled", "OverLimit", "PurgeQueueInProgress", "QueueDeletedRecently", "RequestThrottled", "SlowDown",
        "Throttling", "ThrottlingException", "TooManyRequestsException",
    }
)  # fmt: skip
OVER_LIMIT: Final = "OverLimit"

FAILURES: Final = (ClientError, BotoCoreError)
"""What calls of the SDK raise."""


def code_of(error: Exception) -> str:
    """Return the last word of the service's code; empty for an error that did not come from it."""
    if not isinstance(error, ClientError):
        return ""
    told: dict[str, Any] = error.response.get("Error", {})
    return str(told.get("Code", "")).rpartition(".")[2]


def meaning(error: Exception) -> QueuebellError:
    """Return what to raise for an error of the SDK."""
    if isinstance(error, ClientError):
        return _refused(error)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigurationError("sqs: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile")
    if isinstance(error, EndpointConnectionError | ConnectTimeoutError):
        return StoreUnavailable("sqs: the service cannot be reached; nothing was sent")
    return UnknownOutcome(f"sqs: no answer: {type(error).__name__}")


def _refused(error: ClientError) -> QueuebellError:
    code = code_of(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _NO_QUEUE:
        return QueueNotFound("sqs: there is no such queue")
    if code in _LATER or status in (429, 503):
        return StoreUnavailable(f"sqs: not now: {code or status}")
    if status >= 500:
        return UnknownOutcome(f"sqs: the service failed: {code or status}")
    return StoreError(f"sqs: refused: {code or status}; nothing was changed. Credentials and policy may be the reason")
