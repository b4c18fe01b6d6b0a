"""What a client shows and what it expects to be shown: certificate authority, client certificate, token.

Promises: a token never leaves in plain text except to this machine itself; it is read from its file anew for each
call when the file changed, so a rotation needs no restart; neither token nor key is in any ``repr``. Called by the
client and by the command line.
"""

import ipaddress
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc

TOKEN_BYTES_MAX = 16 * 1024
# Where people keep them. Never on a command line: every user of the machine could read it there.
ENV_TOKEN, ENV_TOKEN_FILE = "FORECREST_TOKEN", "FORECREST_TOKEN_FILE"
ENV_CA, ENV_CERT, ENV_KEY = "FORECREST_CA", "FORECREST_CLIENT_CERT", "FORECREST_CLIENT_KEY"
ENV_SERVER_NAME = "FORECREST_SERVER_NAME"


class CredentialsError(ValueError):
    """Credentials that cannot be used; the message names the file or variable and the remedy."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to reach a server that tells its callers apart. Files are PEM; ``server_name`` replaces the target's.

    TLS is used as soon as one of ``ca``, ``cert`` and ``tls`` is given; ``tls`` alone trusts the system's authorities.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    server_name: str = ""
    tls: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **given: Path | None) -> Self:
        """Read ``FORECREST_TOKEN`` and its like; what is ``given`` counts first."""
        known = os.environ if environment is None else environment

        def path(name: str, variable: str) -> Path | None:
            found = given.get(name)
            return found or (Path(known[variable]).expanduser() if known.get(variable) else None)

        token_file = path("token_file", ENV_TOKEN_FILE)
        return cls(
            ca=path("ca", ENV_CA),
            cert=path("cert", ENV_CERT),
            key=path("key", ENV_KEY),
            token="" if given.get("token_file") else known.get(ENV_TOKEN, ""),
            token_file=token_file,
            server_name=known.get(ENV_SERVER_NAME, ""),
        )

    @property
    def secure(self) -> bool:
        """Whether to speak TLS."""
        return self.tls or self.ca is not None or self.cert is not None

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Read the files; raise CredentialsError."""
        if (self.cert is None) != (self.key is None):
            raise CredentialsError("--cert and --key belong together; give both")
        return grpc.ssl_channel_credentials(*(_read(path) for path in (self.ca, self.key, self.cert)))

    def interceptors(self, target: str) -> list[grpc.aio.ClientInterceptor]:
        """What adds the token to every call; raise CredentialsError for plain text beyond this machine."""
        if not self.token and self.token_file is None:
            return []
        if not self.secure and not is_loopback(target):
            raise CredentialsError(
                f"{target} is not this machine and the token would travel in plain text; give --tls-ca"
            )
        bearer = _Bearer(self)
        bearer.text()  # a missing file is said now, not at the first call
        return [_Unary(bearer), _UnaryStream(bearer), _StreamUnary(bearer), _StreamStream(bearer)]


def is_loopback(target: str) -> bool:
    """Whether ``host:port`` is this machine."""
    host = target.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host == "localhost" or target.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise CredentialsError(f"{path} cannot be read: {error.strerror}") from error


class _Bearer:
    """The token of the moment."""

    def __init__(self, credentials: Credentials) -> None:
        self._given, self._file = credentials.token, credentials.token_file
        self._seen: tuple[int, int, int] | None = None
        self._text = ""

    def text(self) -> str:
        """Return it; raise CredentialsError if there is none (any more)."""
        if self._file is None:
            return _checked(self._given, ENV_TOKEN)
        try:
            status = self._file.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen != self._seen:
                self._text = self._file.read_text()[:TOKEN_BYTES_MAX].strip()
                self._seen = seen
        except (OSError, UnicodeDecodeError) as error:
            raise CredentialsError(f"the token file {self._file} cannot be read") from error
        return _checked(self._text, str(self._file))

    def added(self, details: Any) -> Any:  # noqa: ANN401 -- gRPC's own tuple
        """Return the call's details with the token in its metadata."""
        metadata = [(key, value) for key, value in details.metadata or () if key != "authorization"]
        return details._replace(
            metadata=grpc.aio.Metadata(*metadata, ("authorization", f"Bearer {self.text()}"))
        )


def _checked(text: str, where: str) -> str:
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise CredentialsError(f"{where} holds no token: one line without spaces")
    return text


_Continue = Callable[[Any, Any], Awaitable[Any]]


class _Unary(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, bearer: _Bearer) -> None:
        self._bearer = bearer

    async def intercept_unary_unary(
        self, continuation: _Continue, client_call_details: grpc.aio.ClientCallDetails, request: object
    ) -> Any:  # noqa: ANN401 -- the call object
        return await continuation(self._bearer.added(client_call_details), request)


class _UnaryStream(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self, bearer: _Bearer) -> None:
        self._bearer = bearer

    async def intercept_unary_stream(
        self, continuation: _Continue, client_call_details: grpc.aio.ClientCallDetails, request: object
    ) -> Any:  # noqa: ANN401 -- the call object
        return await continuation(self._bearer.added(client_call_details), request)


class _StreamUnary(grpc.aio.StreamUnaryClientInterceptor):
    def __init__(self, bearer: _Bearer) -> None:
        self._bearer = bearer

    async def intercept_stream_unary(
        self,
        continuation: _Continue,
        client_call_details: grpc.aio.ClientCallDetails,
        request_iterator: AsyncIterable[Any] | Iterable[Any],
    ) -> Any:  # noqa: ANN401 -- the call object
        return await continuation(self._bearer.added(client_call_details), request_iterator)


class _StreamStream(grpc.aio.StreamStreamClientInterceptor):
    def __init__(self, bearer: _Bearer) -> None:
        self._bearer = bearer

    async def intercept_stream_stream(
        self,
        continuation: _Continue,
        client_call_details: grpc.aio.ClientCallDetails,
        request_iterator: AsyncIterable[Any] | Iterable[Any],
    ) -> Any:  # noqa: ANN401 -- the call object
        return await continuation(self._bearer.added(client_call_details), request_iterator)
