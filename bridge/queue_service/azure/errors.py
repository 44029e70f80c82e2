"""The error codes of the Azure Queue service, each with its status and what it says of itself."""

from __future__ import annotations

import math
from typing import Final

from bridge.contract.errors import (
    BadInput,
    Closed,
    Overloaded,
    QueuebellError,
    QueueNotFound,
    StoreError,
    StoreFull,
    UnknownOutcome,
)

CODES: Final[dict[str, tuple[int, str]]] = {
    "AccountIsDisabled": (403, "The account is disabled."),
    "AuthenticationFailed": (
        403,
        "The request could not be authenticated: its signature is missing, malformed, or made with another key.",
    ),
    "AuthorizationFailure": (403, "This request is not authorized to perform this operation."),
    "AuthorizationPermissionMismatch": (403, "The signature does not grant the permission for this operation."),
    "AuthorizationProtocolMismatch": (403, "The signature does not grant the protocol of this request."),
    "AuthorizationResourceTypeMismatch": (403, "The signature does not grant this type of resource."),
    "AuthorizationServiceMismatch": (403, "The signature does not grant this service."),
    "AuthorizationSourceIPMismatch": (403, "The signature does not grant the address that this request came from."),
    "ConditionHeadersNotSupported": (400, "Conditional headers are not supported by the Queue service."),
    "ConditionNotMet": (412, "A condition in a header of the request is not met."),
    "CorsPreflightFailure": (403, "CORS is not enabled, or no matching rule was found for this request."),
    "InsufficientAccountPermissions": (403, "The account does not have the permissions for this operation."),
    "InternalError": (500, "The server met an internal error; the request may be tried again."),
    "InvalidAuthenticationInfo": (400, "The authentication information is not in the correct format."),
    "InvalidHeaderValue": (400, "The value of one of the HTTP headers is not in the correct format."),
    "InvalidHttpVerb": (400, "The HTTP verb is not one that HTTP knows."),
    "InvalidInput": (400, "One of the request inputs is not valid."),
    "InvalidMarker": (400, "The marker is not one that this service gave out."),
    "InvalidMd5": (400, "The Content-MD5 header is not an MD5 digest in base64."),
    "InvalidMetadata": (400, "The metadata holds a name that is empty or not an identifier."),
    "InvalidQueryParameterValue": (400, "Value for one of the query parameters is not valid."),
    "InvalidResourceName": (400, "The resource name is not valid: it holds characters that are not allowed."),
    "InvalidUri": (400, "The address does not name a resource of this service."),
    "InvalidXmlDocument": (400, "The body is not a valid XML document of the form that this operation takes."),
    "InvalidXmlNodeValue": (400, "The value of one of the XML nodes of the body is not in the correct format."),
    "Md5Mismatch": (400, "The MD5 digest of the Content-MD5 header is not that of the body."),
    "MessageNotFound": (404, "The specified message does not exist."),
    "MessageTooLarge": (400, "The message is larger than 65,536 bytes."),
    "MetadataTooLarge": (400, "The metadata is larger than 8 KiB."),
    "MissingContentLengthHeader": (411, "The Content-Length header is missing."),
    "MissingRequiredHeader": (400, "A required HTTP header is missing."),
    "MissingRequiredQueryParameter": (400, "A required query parameter is missing."),
    "MissingRequiredXmlNode": (400, "A required XML node is missing in the body."),
    "NoAuthenticationInformation": (
        401,
        "The request says nothing of who sends it: sign it with an account key, or use a shared access signature.",
    ),
    "OperationTimedOut": (500, "The operation took too long; it may have been carried out, or may still be."),
    "OutOfRangeInput": (400, "One of the request inputs is out of range."),
    "OutOfRangeQueryParameterValue": (400, "One of the query parameters is out of its range."),
    "PopReceiptMismatch": (400, "The pop receipt is not that of the message: it was received or updated since."),
    "QueueAlreadyExists": (409, "The specified queue already exists with other metadata."),
    "QueueNotFound": (404, "The specified queue does not exist."),
    "RequestBodyTooLarge": (413, "The body is larger than this operation takes."),
    "RequestUrlFailedToParse": (400, "The address of the request could not be parsed."),
    "ResourceNotFound": (404, "The specified resource does not exist."),
    "ServerBusy": (503, "The server cannot take this request now; try again."),
    "UnsupportedHeader": (400, "One of the HTTP headers is not supported."),
    "UnsupportedHttpVerb": (405, "The resource does not support this HTTP verb."),
    "UnsupportedQueryParameter": (400, "One of the query parameters is not supported."),
    "UnsupportedXmlNode": (400, "One of the XML nodes of the body is not supported."),
}
"""Code -> (status, message); where the service's own list is older than a code, its documents are followed."""


class AzureError(Exception):
    """A request is refused with one of `CODES`; ``details`` become elements of the answer beside code and message.

    Neither the message nor the details hold a key, a signature of ours, or text of the request that is not escaped.
    """

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        status: int | None = None,
        details: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        close: bool = False,
    ) -> None:
        known_status, known_message = CODES[code]
        self.code = code
        self.status = known_status if status is None else status
        self.message = known_message if message is None else message
        self.details = details or {}
        self.headers = headers or {}
        """Further headers of the answer, such as ``Retry-After``."""
        self.close = close
        """Whether the connection ends after the answer, as where the body was not read."""
        super().__init__(f"{code}: {self.message}")


def busy(message: str) -> AzureError:
    """Return the refusal of what may be tried again in a second."""
    return AzureError("ServerBusy", message, headers={"Retry-After": "1"})


def translated(error: QueuebellError) -> AzureError:
    """Return what an error of the store, or of the gate before it, is called here."""
    if isinstance(error, QueueNotFound):
        return AzureError("QueueNotFound")
    if isinstance(error, UnknownOutcome):
        return AzureError("OperationTimedOut", "The outcome is unknown: it may have been carried out.")
    if isinstance(error, Overloaded):
        seconds = max(1, math.ceil(error.retry_after or 0))
        message = "The server has more to do than it can; nothing was put. Try again."
        return AzureError("ServerBusy", message, headers={"Retry-After": str(seconds)})
    if isinstance(error, StoreFull):
        return busy("There is no room for more; what was acknowledged is safe. Messages can be received and deleted.")
    if isinstance(error, Closed):
        return busy("The server is stopping.")
    if isinstance(error, BadInput):
        return busy("There are too many queues.") if error.status == 503 else AzureError("InvalidInput")
    if isinstance(error, StoreError):
        return busy("The store cannot do that now.")
    return AzureError("InternalError")
