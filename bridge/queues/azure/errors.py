"""Map errors of Azure's services and the connection to store errors. Imports the SDK, so it is imported late."""

from __future__ import annotations

from typing import Final

from aiohttp import ClientConnectorError
from azure.core.exceptions import (
    AzureError,
    HttpResponseError,
    ServiceRequestError,
    ServiceRequestTimeoutError,
)

from queuebell.bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    QueuebellError,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)

FAILURES: Final = AzureError
"""The exception of the SDK's calls."""
_NO_MESSAGE: Final = frozenset({"MessageNotFound", "InvalidUri", "ResourceNotFound"})
_NO_RECEIPT: Final = frozenset({"PopReceiptMismatch", "InvalidQueryParameterValue", "OutOfRangeQueryParameterValue"})
_STRANGER: Final = frozenset({"AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation"})
_OLD_DATE: Final = "date header"
"""Part of the details of a rejection because of the request's time."""
_OLDER: Final = "InvalidHeaderValue"
OLDER_VERSION: Final = "2025-11-05"
_LATER: Final = frozenset(
    {
        "AccountBeingCreated", "ContainerBeingDeleted", "ContainerDisabled", "QueueBeingDeleted", "QueueDisabled",
        "ServerBusy", "TableBeingDeleted",
    }
)  # fmt: skip


def code_of(error: AzureError) -> str:
    """Return the service's code; empty for an error of another origin."""
    code = getattr(error, "error_code", None) or ""
    return str(getattr(code, "value", code))  # An enumeration member if the SDK knows the code.


def settled_code(error: AzureError) -> str | None:
    """Return the code of one item's outcome, None if the error does not concern the item."""
    code, status = code_of(error), getattr(error, "status_code", None)
    if code in _NO_MESSAGE and status in (400, 404):
        return "message_not_found"
    return "pop_receipt_mismatch" if code in _NO_RECEIPT and status == 400 else None


def meaning(error: AzureError) -> QueuebellError:
    """Return the store error for an error that does not concern one queue, message, blob or entity."""
    if isinstance(error, HttpResponseError) and error.status_code is not None:
        said = code_of(error) or str(error.status_code)
        if error.status_code in (429, 503) or said in _LATER:
            return StoreUnavailable(f"azure: temporarily unavailable: {said}")
        if error.status_code >= 500:
            return UnknownOutcome(f"azure: the service failed: {said}")
        return StoreError(
            f"azure: rejected: {said}; nothing was changed. Check the key, the permissions and the api_version"
        )
    # The SDK raises a request error for connections lost while waiting for an answer too.
    unsent = isinstance(error, ServiceRequestError) and isinstance(error.inner_exception, ClientConnectorError)
    if unsent or isinstance(error, ServiceRequestTimeoutError):
        return StoreUnavailable("azure: the service cannot be reached; nothing was sent")
    return UnknownOutcome(f"azure: no answer: {type(error).__name__}")


def queue_meaning(error: AzureError, *, accepted_before: bool) -> QueuebellError:
    """Return the store error for an error of the queue service; ``accepted_before`` if it accepted a call before."""
    status = error.status_code if isinstance(error, HttpResponseError) else None
    general = meaning(error)
    if status is None:
        return general
    code = code_of(error)
    said = code or str(status)
    if code == "QueueNotFound" or (status == 404 and code != "MessageNotFound"):
        return QueueNotFound("azure: there is no such queue")
    if status == 413 or code == "RequestBodyTooLarge":
        return BadInput("message_too_large", "azure: the message is too large")
    if type(general) is not StoreError:
        return general
    # After successful calls the problem may be temporary.
    wrong = StoreError if accepted_before else ConfigurationError
    if code in _STRANGER:
        if _OLD_DATE in str(error).lower():  # Clocks change while programs run.
            return StoreError(f"azure: not allowed: {said}: this machine's clock is wrong")
        return wrong(
            f"azure: the account rejects the credentials: {said}; check AccountKey, signature and this machine's clock"
        )
    if status in (401, 403):
        return StoreError(f"azure: not allowed: {said}; check the key, the signature's rights and this machine's clock")
    if code == _OLDER:
        return wrong(
            f"azure: rejected: {said}; the service may only support older API versions, as the emulator does: "
            f"name one in the address, as in azure:?api_version={OLDER_VERSION}"
        )
    return StoreError(f"azure: rejected: {said}; nothing was changed")
