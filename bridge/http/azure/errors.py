"""The error codes of the Azure Queue service, each with its status and message."""

from __future__ import annotations

import math
from typing import Final

from queuebell.bridge.contract.errors import (
    BadInput,
    Closed,
    Overloaded,
    QueuebellError,
    QueueNotFound,
    StoreError,
    StoreFull,
    UnknownOutcome,
    Unsupported,
)
from queuebell.bridge.queues.served import NoRoom

_BY_STATUS: Final[dict[int, dict[str, str]]] = {
    400: {
        "ConditionHeadersNotSupported": "Condition headers are not supported.",
        "InvalidAuthenticationInfo": (
            "Authentication information is not given in the correct format. Check the value of Authorization header."
        ),
        "InvalidHeaderValue": "The value for one of the HTTP headers is not in the correct format.",
        "InvalidHttpVerb": "The HTTP verb specified was not recognized by the server.",
        "InvalidInput": "One of the request inputs is not valid.",
        "InvalidMarker": "The marker was not issued by this service.",
        "InvalidMd5": (
            "The MD5 value specified in the request is invalid. MD5 value must be 128 bits and base64-encoded."
        ),
        "InvalidMetadata": "The metadata specified is invalid. It has characters that are not permitted.",
        "InvalidQueryParameterValue": "Value for one of the query parameters specified in the request URI is invalid.",
        "InvalidResourceName": "The specified resource name contains invalid characters.",
        "InvalidUri": "The requested URI does not represent any resource on the server.",
        "InvalidXmlDocument": "XML specified is not syntactically valid.",
        "InvalidXmlNodeValue": "The value for one of the XML nodes is not in the correct format.",
        "Md5Mismatch": (
            "The MD5 value specified in the request did not match with the MD5 value calculated by the server."
        ),
        "MetadataTooLarge": "The metadata specified exceeds the maximum allowed limit (8 KB).",
        "MissingRequiredHeader": "An HTTP header that's mandatory for this request is not specified.",
        "MissingRequiredQueryParameter": "A query parameter that's mandatory for this request is not specified.",
        "MissingRequiredXmlNode": "A required XML node was not specified in the request body.",
        "OutOfRangeInput": "One of the request inputs is out of range.",
        "OutOfRangeQueryParameterValue": (
            "One of the query parameters specified in the request URI is outside the permissible range."
        ),
        "PopReceiptMismatch": "The specified pop receipt did not match the pop receipt for a dequeued message.",
        "RequestUrlFailedToParse": "The url in the request could not be parsed.",
        "UnsupportedHeader": "One of the HTTP headers specified in the request is not supported.",
        "UnsupportedQueryParameter": "One of the query parameters specified in the request URI is not supported.",
        "UnsupportedXmlNode": "One of the XML nodes specified in the request body is not supported.",
    },
    401: {
        "NoAuthenticationInformation": (
            "Server failed to authenticate the request. Please refer to the information in the www-authenticate header."
        ),
    },
    403: {
        "AccountIsDisabled": "The specified account is disabled.",
        "AuthenticationFailed": (
            "Server failed to authenticate the request. Make sure the value of Authorization header is formed "
            "correctly including the signature."
        ),
        "AuthorizationFailure": "This request is not authorized to perform this operation.",
        "AuthorizationPermissionMismatch": (
            "This request is not authorized to perform this operation using this permission."
        ),
        "AuthorizationProtocolMismatch": (
            "This request is not authorized to perform this operation using this protocol."
        ),
        "AuthorizationResourceTypeMismatch": (
            "This request is not authorized to perform this operation using this resource type."
        ),
        "AuthorizationServiceMismatch": "This request is not authorized to perform this operation using this service.",
        "AuthorizationSourceIPMismatch": (
            "This request is not authorized to perform this operation using this source IP."
        ),
        "CorsPreflightFailure": "CORS not enabled or no matching rule found for this request.",
        "InsufficientAccountPermissions": (
            "The account being accessed does not have sufficient permissions to execute this operation."
        ),
    },
    404: {
        "MessageNotFound": "The specified message does not exist.",
        "QueueNotFound": "The specified queue does not exist.",
        "ResourceNotFound": "The specified resource does not exist.",
    },
    405: {
        "UnsupportedHttpVerb": "The resource doesn't support specified Http Verb.",
    },
    409: {
        "QueueAlreadyExists": "The specified queue already exists.",
    },
    411: {
        "MissingContentLengthHeader": "The Content-Length header was not specified.",
    },
    412: {
        "ConditionNotMet": "The condition specified using HTTP conditional header(s) is not met.",
    },
    413: {
        "RequestBodyTooLarge": "The request body is too large and exceeds the maximum permissible limit.",
    },
    500: {
        "InternalError": "Server encountered an internal error. Please try again after some time.",
        "OperationTimedOut": "Operation could not be completed within the permitted time.",
    },
    503: {
        "ServerBusy": "The server is currently unable to receive requests. Please retry your request.",
    },
}
CODES: Final = {code: (status, text) for status, texts in _BY_STATUS.items() for code, text in texts.items()}
"""Code -> (status, message), with the service's own messages if known: clients and their tests match them.

Sources: "Common REST API error codes", "Queue service error codes" and "Status and error codes" of the REST reference.
"""


class AzureError(Exception):
    """A request refused with one of `CODES`; ``details`` become further elements of the answer.

    Neither the message nor the details contain a key, or a signature made with one.
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
        """Whether the connection ends after the answer, for example if the body was not read."""
        self.held_s = 0.0
        """How long the answer is delayed, because its sender was refused too often."""
        super().__init__(f"{code}: {self.message}")


def busy(message: str, retry_after_s: int = 1, *, close: bool = False) -> AzureError:
    """Return a refusal that may be retried after so many seconds; at a 429 clients of the service would give up."""
    return AzureError("ServerBusy", message, headers={"Retry-After": str(retry_after_s)}, close=close)


UNREAD = "Too many answers wait for slow clients; nothing was received. Try again."


def translated(error: QueuebellError) -> AzureError:
    """Return the Azure error for an error of the store or its gate."""
    if isinstance(error, QueueNotFound):
        return AzureError("QueueNotFound")
    if isinstance(error, UnknownOutcome):
        return AzureError("OperationTimedOut", "The outcome is unknown: it may have been carried out.")
    if isinstance(error, Overloaded):
        seconds = math.ceil(error.retry_after or 1)
        return busy("The server is overloaded; nothing was put. Try again.", seconds)
    if isinstance(error, NoRoom):
        return busy(UNREAD)
    if isinstance(error, StoreFull):
        return busy("The storage is full; acknowledged messages are safe. Messages can be received and deleted.")
    if isinstance(error, Unsupported):
        return AzureError("InternalError", f"{error}; nothing was done.", status=501)
    if isinstance(error, Closed):
        return busy("The server is stopping.")
    if isinstance(error, BadInput):
        return busy("There are too many queues.") if error.status == 503 else AzureError("InvalidInput")
    if isinstance(error, StoreError):
        return busy("The store cannot do that now.")
    return AzureError("InternalError")
