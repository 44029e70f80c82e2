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
"""What calls of the SDK raise."""


def code_of(error: Exception) -> str:
    """Return the last word of the service's code; empty for an error that did not come from it."""
    if not isinstance(error, ClientError):
        return ""
    told: dict[str, Any] = error.response.get("Error", {})
    return str(told.get("Code", "")).rpartition(".")[2]


def meaning(error: Exception, *, let_in: bool = True) -> QueuebellError:
    """Return what to raise for an error of the SDK; ``let_in`` where the service has carried out a call before."""
    if isinstance(error, ClientError):
        return _refused(error, let_in)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigurationError("sqs: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile")
    if isinstance(error, EndpointConnectionError | ConnectTimeoutError):
        return StoreUnavailable("sqs: the service cannot be reached; nothing was sent")
    return UnknownOutcome(f"sqs: no answer: {type(error).__name__}")


def _refused(error: ClientError, let_in: bool) -> QueuebellError:
    code = code_of(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _NO_QUEUE:
        return QueueNotFound("sqs: there is no such queue")
    if code in _LATER or status in (429, 503):
        return StoreUnavailable(f"sqs: not now: {code or status}")
    if status >= 500:
        return UnknownOutcome(f"sqs: the service failed: {code or status}")
    if code in _STRANGER:
        if _OLD_DATE in str(error):  # clocks are set while programs run
            return StoreError(f"sqs: not allowed: {code}: this machine's clock is wrong")
        # Of a service that has let us in, another try may be answered otherwise.
        wrong = StoreError if let_in else ConfigurationError
        return wrong(f"sqs: the service does not let us in: {code}; check the access key, its secret and its token")
    return StoreError(f"sqs: refused: {code or status}; nothing was changed. Credentials and policy may be the reason")
