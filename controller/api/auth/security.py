"""Everything that protects one server, put together from its settings and kept fresh.

Promises: wrong settings end the start with a sentence that names them; later changes of the files come into force
within seconds or, if they are wrong, not at all. Without any setting callers are not told apart, which only
loopback may. Called by the composition root, the server and the side port.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from controller.adapters.clock import SystemClock
from controller.api.auth.files import SecurityError, WatchedFiles
from controller.api.auth.identity import AccessFile, Authenticator, read_access
from controller.api.auth.oidc import REFETCH_S, OidcSettings, OidcVerifier
from controller.api.auth.tls import Tls, TlsPaths
from controller.api.auth.tokens import TokenBook, read_tokens
from controller.ports import Clock

log = logging.getLogger(__name__)

__all__ = ["Security", "SecurityError", "SecurityFiles"]

RELOAD_PERIOD_S = 2.0
# A certificate that ends this soon is worth a line in the log, once per reload.
EXPIRY_WARNING = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class SecurityFiles:
    """Where things are; None: not used. Given together: cert with key, client CA with cert, OIDC as a whole."""

    tls: TlsPaths | None = None
    tokens: Path | None = None
    access: Path | None = None
    oidc: OidcSettings | None = None


class Security:
    """What is in force now. Without arguments: nothing, for loopback."""

    def __init__(self, files: SecurityFiles | None = None, clock: Clock | None = None) -> None:
        """Read every file; raise SecurityError."""
        files, self._clock = files or SecurityFiles(), clock or SystemClock()
        self.tls = Tls(files.tls) if files.tls else None
        self._tokens: WatchedFiles[TokenBook] | None = None
        self._access: WatchedFiles[AccessFile] | None = None
        self._oidc: OidcVerifier | None = None
        if files.tokens is not None:
            tokens_file = files.tokens
            self._tokens = WatchedFiles(
                "the tokens file", (tokens_file,), lambda: TokenBook(read_tokens(tokens_file))
            )
        if files.access is not None:
            access_file = files.access
            self._access = WatchedFiles("the access file", (access_file,), lambda: read_access(access_file))
        if files.oidc is not None:
            if self._access is None:
                raise SecurityError("access_file: is required with oidc; it says what each group may do")
            self._oidc = OidcVerifier(files.oidc, self._clock)
        asks = self.tls is not None and self.tls.asks_clients
        if asks and self._access is None:
            raise SecurityError(
                "access_file: is required with tls_client_ca; it says what each certificate may do"
            )
        self.authenticator = Authenticator(
            self._clock, tokens=self._tokens, access=self._access, oidc=self._oidc, certificates=asks
        )
        self._warn_of_expiry()

    @property
    def failures(self) -> dict[str, bool]:
        """Whether the newest version of each source could not be used, for metrics."""
        return {
            name: source.failed
            for name, source in (
                ("tls", self.tls.files if self.tls else None),
                ("tokens", self._tokens),
                ("access", self._access),
                ("oidc", self._oidc.keys if self._oidc else None),
            )
            if source is not None
        }

    @property
    def certificate_expires_at(self) -> datetime | None:
        """When the server's certificate ends; None without TLS."""
        return None if self.tls is None else self.tls.files.value.expires_at

    async def refresh(self) -> bool:
        """Look at every source; return whether who may do what may have changed."""
        if self.tls is not None and self.tls.refresh():
            self._warn_of_expiry()
        changed = [files.refresh() for files in (self._tokens, self._access) if files is not None]
        if self._oidc is not None:
            await self._oidc.keys.refresh(REFETCH_S)
        return any(changed)

    def _warn_of_expiry(self) -> None:
        if self.tls is not None:
            expires_at = self.tls.files.value.expires_at
            if expires_at <= self._clock.now() + EXPIRY_WARNING:
                log.warning(
                    "the TLS certificate ends at %s; replace its files, a restart is not needed", expires_at
                )
