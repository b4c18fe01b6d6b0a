"""Send notifications over HTTP: a signed webhook, or the form that Slack and its like take.

Promises: one POST per attempt, bounded in time and in what is read of the answer; redirects are not followed and proxies of
the environment not used; names are resolved here, and an address that no receiver can have is refused whatever the name
says; neither the address nor a secret is in any message. Refuses nothing silently: 2xx is delivered, everything else an
error that says whether to try again. Called by the notifier and by ``forecrest notifications check``.
"""

import hashlib
import hmac
import ipaddress
import json
import socket
import ssl
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from controller.notify.config import Sink, SinksError, is_forbidden
from controller.notify.types import Notification
from controller.ports import Clock, SinkBusyError, SinkRefusedError

ANSWER_BYTES_MAX = 4096
RETRY_AFTER_MAX = timedelta(minutes=10)
SENTENCE_MAX = 3000
USER_AGENT = "forecrest"
# What a receiver may answer differently in a moment, or once somebody has put its secret right.
_PASSING = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_EARLY,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """HMAC-SHA256 of ``{timestamp}.{body}``, in hexadecimal digits."""
    return hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def payload(notification: Notification) -> dict[str, Any]:
    """The body of a webhook; docs/notifications.md promises these fields."""
    return {
        "id": notification.id,
        "time": notification.at.isoformat(),
        "kind": notification.kind.value,
        "alarm": notification.alarm.value if notification.alarm else None,
        "severity": notification.severity.value,
        "workload": notification.workload or None,
        "namespace": notification.namespace,
        "subject": notification.subject or None,
        "sentence": notification.sentence[:SENTENCE_MAX],
    }


def slack_payload(notification: Notification) -> dict[str, str]:
    """The one field that Slack, Mattermost and Rocket.Chat all take; what is markup there is escaped."""
    mark = {"INFO": ":information_source:", "WARNING": ":warning:", "CRITICAL": ":rotating_light:"}
    said = notification.sentence[:SENTENCE_MAX]
    for plain, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        said = said.replace(plain, escaped)
    return {"text": f"{mark[notification.severity]} {said}"}


class _Resolver(AbstractResolver):
    """Resolves as usual and leaves out addresses that nothing is ever sent to."""

    def __init__(self) -> None:
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        allowed = [one for one in found if not is_forbidden(ipaddress.ip_address(one["host"].split("%")[0]))]
        if not allowed:
            raise OSError("the name stands for link-local, multicast or unspecified addresses only")
        return allowed

    async def close(self) -> None:
        await self._inner.close()


class WebhookSink:
    """Implements `controller.ports.NotificationSink`."""

    def __init__(self, sink: Sink, clock: Clock) -> None:
        self._sink, self._clock = sink, clock
        self._session: aiohttp.ClientSession | None = None

    async def send(self, notification: Notification, attempt: int) -> None:
        """Deliver it once; raise SinkBusyError to be asked again, SinkRefusedError for never."""
        try:
            address, secrets = self._sink.address(), self._sink.secrets()
            session = self._opened()
        except SinksError as error:  # a file that is being replaced is back at the next attempt
            raise SinkBusyError(str(error)) from None
        slack = self._sink.format == "slack"
        body = json.dumps(
            slack_payload(notification) if slack else payload(notification), ensure_ascii=False
        ).encode()
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": USER_AGENT,
            "Idempotency-Key": notification.id,
            "Forecrest-Attempt": str(attempt),
        }
        if secrets:
            # Of this attempt, not of the milestone: receivers refuse what is old, and a retry is not.
            at = int(self._clock.now().timestamp())
            headers["Forecrest-Timestamp"] = str(at)
            headers["Forecrest-Signature"] = ",".join(f"v1={signature(s, at, body)}" for s in secrets)
        try:
            async with session.post(address, data=body, headers=headers, allow_redirects=False) as answer:
                said = await answer.content.read(ANSWER_BYTES_MAX)
                _judge(answer.status, said, answer.headers.get("Retry-After", ""))
        except TimeoutError:
            raise SinkBusyError(f"no answer within {self._sink.timeout_s:g} s") from None
        except aiohttp.ClientSSLError as error:
            raise SinkBusyError(f"TLS failed ({type(error).__name__}); see ca_file") from None
        except (aiohttp.ClientError, OSError) as error:
            # Its text may hold the address, which may be a secret.
            raise SinkBusyError(f"cannot be reached ({type(error).__name__})") from None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            secure: ssl.SSLContext | bool = True
            if self._sink.ca_file is not None:
                try:
                    secure = ssl.create_default_context(cafile=str(self._sink.ca_file))
                except (OSError, ssl.SSLError):
                    raise SinksError(f"ca_file {self._sink.ca_file}: cannot be used") from None
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._sink.timeout_s),
                connector=aiohttp.TCPConnector(ssl=secure, limit=16, resolver=_Resolver()),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session

    async def close(self) -> None:
        """Release connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _judge(status: int, said: bytes, retry_after: str) -> None:
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return
    text = " ".join(said[:120].decode("utf-8", "replace").split())
    text = "".join(letter for letter in text if letter.isprintable())  # people see it in terminals
    message = f"answered {status} {text}".rstrip()
    if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        after = (
            timedelta(seconds=int(retry_after)) if retry_after.isdecimal() and len(retry_after) < 6 else None
        )
        raise SinkBusyError(message, None if after is None else min(after, RETRY_AFTER_MAX))
    raise SinkRefusedError(message)
