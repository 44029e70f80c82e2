"""Map errors of SQS, S3 and the connection to store errors. Imports botocore, so it is imported late."""

from __future__ import annotations

from typing import Any, Final

from botocore.exceptions import (  # type: ignore[import-untyped]
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
)

from queuebell.bridge.contract.errors import (
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
        "KmsThrottled", "OperationAborted", "OverLimit", "PurgeQueueInProgress", "QueueDeletedRecently",
        "RequestThrottled", "RequestTimeout", "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException",
        "TooManyRequestsException",
    }
)  # fmt: skip
_STRANGER: Final = frozenset(
    {
        "ExpiredToken", "ExpiredTokenException", "IncompleteSignature", "InvalidAccessKeyId", "InvalidClientTokenId",
        "InvalidSecurity", "InvalidSignatureException", "MissingAuthenticationToken", "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)  # fmt: skip
_OLD_DATE: Final = "Signature expired"
OVER_LIMIT: Final = "OverLimit"

FAILURES: Final = (ClientError, BotoCoreError)
"""Exceptions of the SDK's calls."""


def code_of(error: Exception) -> str:
    """Return the last part of the service's code; empty for an error of another origin."""
    if not isinstance(error, ClientError):
        return ""
    told: dict[str, Any] = error.response.get("Error", {})
    return str(told.get("Code", "")).rpartition(".")[2]


def meaning(error: Exception, service: str) -> QueuebellError:
    """Return the store error for an error that does not concern one queue or object."""
    if isinstance(error, ClientError):
        code, status = code_of(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _LATER or status in (429, 503):
            return StoreUnavailable(f"{service}: temporarily unavailable: {code or status}")
        if status >= 500:
            return UnknownOutcome(f"{service}: the service failed: {code or status}")
        return StoreError(f"{service}: rejected: {code or status}; nothing was changed")
    if isinstance(error, NoCredentialsError | PartialCredentialsError | NoRegionError):
        return ConfigurationError(
            f"{service}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
        )
    if isinstance(error, EndpointConnectionError | ConnectTimeoutError):
        return StoreUnavailable(f"{service}: the service cannot be reached; nothing was sent")
    return UnknownOutcome(f"{service}: no answer: {type(error).__name__}")


def queue_meaning(error: Exception, what: str, *, accepted_before: bool) -> QueuebellError:
    """Return the store error for an error of SQS.

    ``what`` is the action and its queue; ``accepted_before``: the service has accepted a call before.
    """
    code, general = code_of(error), meaning(error, "sqs")
    if code in _NO_QUEUE:
        return QueueNotFound("sqs: there is no such queue")
    if type(general) is not StoreError:
        return general
    if code in _STRANGER:
        if _OLD_DATE in str(error):  # Clocks change while programs run.
            return StoreError(f"sqs: not allowed: {code}: this machine's clock is wrong")
        # After successful calls the problem may be temporary.
        wrong = StoreError if accepted_before else ConfigurationError
        return wrong(
            f"sqs: the service rejects the credentials: {code}; check the access key, its secret and its token"
        )
    return StoreError(f"{general}. Check credentials and policy for {what}")
