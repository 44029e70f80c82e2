"""What an error of an Azure service, or of the way there, means. Imports the SDK: itself imported late."""

from __future__ import annotations

from typing import Final

from aiohttp import ClientConnectorError
from azure.core.exceptions import (
    AzureError,
    HttpResponseError,
    ServiceRequestError,
    ServiceRequestTimeoutError,
)

from bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    QueuebellError,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)

FAILURES: Final = AzureError
"""What calls of the SDK raise."""
_NO_MESSAGE: Final = frozenset({"MessageNotFound", "InvalidUri", "ResourceNotFound"})
_NO_RECEIPT: Final = frozenset({"PopReceiptMismatch", "InvalidQueryParameterValue", "OutOfRangeQueryParameterValue"})
_STRANGER: Final = frozenset({"AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation"})
_OLD_DATE: Final = "date header"
"""What stands in the details of a request that was refused for its time."""
_OLDER: Final = "InvalidHeaderValue"
OLDER_VERSION: Final = "2025-11-05"
_LATER: Final = frozenset(
    {
        "AccountBeingCreated", "ContainerBeingDeleted", "ContainerDisabled", "QueueBeingDeleted", "QueueDisabled",
        "ServerBusy", "TableBeingDeleted",
    }
)  # fmt: skip


def code_of(error: AzureError) -> str:
    """Return the service's code; empty for an error that did not come from it."""
    code = getattr(error, "error_code", None) or ""
    return str(getattr(code, "value", code))  # an enumeration where the SDK knows the code


def settled_code(error: AzureError) -> str | None:
    """Return the code of one item's outcome, None where the error is not about the item."""
    code, status = code_of(error), getattr(error, "status_code", None)
    if code in _NO_MESSAGE and status in (400, 404):
        return "message_not_found"
    return "pop_receipt_mismatch" if code in _NO_RECEIPT and status == 400 else None


def meaning(error: AzureError) -> QueuebellError:
    """Return what to raise for an error of an SDK that is not about one queue, message, blob or entity."""
    if isinstance(error, HttpResponseError) and error.status_code is not None:
        said = code_of(error) or str(error.status_code)
        if error.status_code in (429, 503) or said in _LATER:
            return StoreUnavailable(f"azure: not now: {said}")
        if error.status_code >= 500:
            return UnknownOutcome(f"azure: the service failed: {said}")
        return StoreError(f"azure: refused: {said}; nothing was changed. Check the key, the rights and the api_version")
    # The SDK says "request error" for connections that broke while it waited for the answer, too.
    unsent = isinstance(error, ServiceRequestError) and isinstance(error.inner_exception, ClientConnectorError)
    if unsent or isinstance(error, ServiceRequestTimeoutError):
        return StoreUnavailable("azure: the service cannot be reached; nothing was sent")
    return UnknownOutcome(f"azure: no answer: {type(error).__name__}")


def queue_meaning(error: AzureError, *, let_in: bool) -> QueuebellError:
    """Return what to raise for an error of the queue service; ``let_in`` where it has carried out a call before."""
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
    # Of a service that has worked with this key and this version, another try may be answered otherwise.
    wrong = StoreError if let_in else ConfigurationError
    if code in _STRANGER:
        if _OLD_DATE in str(error).lower():  # clocks are set while programs run
            return StoreError(f"azure: not allowed: {said}: this machine's clock is wrong")
        return wrong(f"azure: the account does not let us in: {said}; check AccountKey or signature, and this clock")
    if status in (401, 403):
        return StoreError(f"azure: not allowed: {said}; check the key, the signature's rights and this machine's clock")
    if code == _OLDER:
        return wrong(
            f"azure: refused: {said}; the service may know older versions of its interface only, as the emulator does: "
            f"name one in the address, as in azure:?api_version={OLDER_VERSION}"
        )
    return StoreError(f"azure: refused: {said}; nothing was changed")
