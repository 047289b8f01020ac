"""Lets Flower's programs ask a server again that answers with HTTP 500, as they do for 502, 503 and 504.

A SuperLink answers with 500 if its database is locked for a moment. Flower's SuperExec and SuperNode end with such an
answer, and a ServerApp ends with its SuperExec.
"""

import httpx
from flwr.supercore.retry import http_retry


def retry_internal_errors() -> None:
    """Make Flower's clients in this process ask again after HTTP 500, with its own pauses, which grow."""
    known = http_retry._RETRYABLE_STATUS_CODES
    http_retry._RETRYABLE_STATUS_CODES = known | {httpx.codes.INTERNAL_SERVER_ERROR}
