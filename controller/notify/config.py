"""The sinks file: who is told what, and how. YAML, read once when the controller starts.

Promises: every mistake names the sink, the field and the remedy, and never a secret; secrets are files of their own.
Refuses unknown fields, addresses that are not https unless they are loopback or ``allow_http`` says so, and addresses that
no receiver of ours can have (link-local ones, where clouds keep their credentials). Called by ``bootstrap`` and by
``forecrest notifications``.
"""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from controller.core.types import AlarmKind
from controller.notify.types import SEVERITY_ORDER, Kind, Notification, Severity
from controller.ports import PortError

FILE_BYTES_MAX = 1_000_000
SECRET_BYTES_MAX = 4096
SECRETS_MAX = 4
_KINDS = frozenset({*(k for k in Kind if k is not Kind.TEST), *AlarmKind})
_LOCAL_NAMES = frozenset({"localhost"})


class SinksError(PortError):
    """The sinks file, or a file that it names, cannot be used."""


class Sink(BaseModel):
    """One receiver."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
    format: Literal["webhook", "slack"] = "webhook"
    url: str = ""
    url_file: Path | None = None  # for addresses that are secrets themselves, as Slack's are
    secret_file: Path | None = None  # of webhooks: one secret a line, to rotate them
    namespaces: Annotated[tuple[str, ...], Field(max_length=1000)] = ()  # none: all
    kinds: Annotated[tuple[str, ...], Field(max_length=50)] = ()  # none: all
    severity: Severity = Severity.INFO  # at least this
    allow_http: bool = False
    ca_file: Path | None = None
    timeout_s: Annotated[float, Field(gt=0, le=30)] = 10.0

    @field_validator("kinds")
    @classmethod
    def _are_kinds(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = sorted(set(value) - _KINDS)
        if unknown:
            raise ValueError(f"{unknown[0]!r} is unknown; choose from {', '.join(sorted(_KINDS))}")
        return value

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if bool(self.url) == (self.url_file is not None):
            raise ValueError("give either url or url_file")
        if self.url:
            check_url(self.url, allow_http=self.allow_http)
        if (self.format == "webhook") != (self.secret_file is not None):
            raise ValueError(
                "secret_file is needed with format webhook, which is signed, and of no use with slack"
            )
        return self

    def wants(self, notification: Notification) -> bool:
        """Whether it is for this sink."""
        return (
            SEVERITY_ORDER.index(notification.severity) >= SEVERITY_ORDER.index(self.severity)
            and (not self.namespaces or notification.namespace in self.namespaces)
            and (not self.kinds or notification.kind in self.kinds or notification.alarm in self.kinds)
        )

    def address(self) -> str:
        """Where to send to, read anew each time; raise SinksError."""
        if self.url_file is None:
            return self.url
        url = _secret_text(self.url_file, f"sink {self.name}: url_file")
        try:
            check_url(url, allow_http=self.allow_http)
        except ValueError as error:
            raise SinksError(f"sink {self.name}: url_file {self.url_file}: {error}") from None
        return url

    def secrets(self) -> list[str]:
        """What to sign with, newest first, read anew each time; raise SinksError."""
        if self.secret_file is None:
            return []
        text = _secret_text(self.secret_file, f"sink {self.name}: secret_file")
        return [line.strip() for line in text.splitlines() if line.strip()][:SECRETS_MAX]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    sinks: Annotated[tuple[Sink, ...], Field(min_length=1, max_length=20)]


def read_sinks(path: Path) -> tuple[Sink, ...]:
    """Read the file, and see that the files it names can be read; raise SinksError with every mistake."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise SinksError(f"{path}: is larger than {FILE_BYTES_MAX} bytes; tell fewer sinks")
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SinksError(f"{path}: {error.strerror}; check FORECREST_NOTIFICATIONS_FILE") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise SinksError(f"{path}: is not YAML; see docs/notifications.md") from None
    try:
        sinks = _File.model_validate(document).sinks
    except ValidationError as error:
        problems = [
            f"{path}: {'.'.join(map(str, e['loc'])) or 'document'}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors(include_input=False, include_url=False)
        ]
        raise SinksError("\n".join(problems)) from None
    names = [sink.name for sink in sinks]
    if len(set(names)) < len(names):
        raise SinksError(f"{path}: two sinks have the same name; give each its own")
    for sink in sinks:
        sink.address()
        if sink.secret_file is not None and not sink.secrets():
            raise SinksError(
                f"sink {sink.name}: secret_file {sink.secret_file} is empty; write a secret into it"
            )
    return sinks


def check_url(url: str, *, allow_http: bool) -> None:
    """Raise ValueError, which does not repeat the address, unless it is one to send to."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("url: is no address; write https://host/path") from None
    if parts.scheme not in {"http", "https"} or not host or re.search(r"\s", url):
        raise ValueError("url: is no address; write https://host/path")
    if "@" in parts.netloc:
        raise ValueError("url: leave user and password out; webhooks are signed")
    try:
        literal = ipaddress.ip_address(host)
    except ValueError:
        literal = None
    if (
        literal is None and host.replace(".", "").isdigit()
    ):  # 2852039166 and 169.254.43518 are addresses to some
        raise ValueError("url: is no address; write all four numbers, with dots between them")
    if literal is not None and is_forbidden(literal):
        raise ValueError("url: this address is for no receiver (link-local, multicast or unspecified)")
    loopback = host in _LOCAL_NAMES or (literal is not None and literal.is_loopback)
    if parts.scheme == "http" and not loopback and not allow_http:
        raise ValueError(
            "url: use https, or say allow_http: true and accept that anybody on the way can read it"
        )


def is_forbidden(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether nothing is ever sent there: not a receiver, and link-local services hand out credentials."""
    mapped = getattr(address, "ipv4_mapped", None)
    seen = mapped or address
    return bool(seen.is_link_local or seen.is_multicast or seen.is_unspecified)


def _secret_text(path: Path, what: str) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(SECRET_BYTES_MAX + 1).strip()
    except (OSError, UnicodeError):
        raise SinksError(f"{what} {path}: cannot be read; correct it") from None
    if len(text) > SECRET_BYTES_MAX:
        raise SinksError(f"{what} {path}: is longer than {SECRET_BYTES_MAX} characters; correct it")
    return text
