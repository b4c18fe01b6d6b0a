"""The server's certificate, key and the authority of its clients, from files that may be replaced at any time.

Promises: TLS 1.2 at least; certificate and key come into force together or not at all; new connections see a
rotation within seconds, open ones go on. Called by the server and the side port.
"""

import ssl
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509

from controller.api.auth.files import SecurityError, WatchedFiles, read_bounded


@dataclass(frozen=True, slots=True)
class TlsPaths:
    """Where the files lie, PEM. ``client_ca``: clients must then show a certificate of it."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file."""
        return (self.cert, self.key, *([self.client_ca] if self.client_ca else []))


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What the files held together."""

    cert: bytes
    key: bytes
    client_ca: bytes | None
    expires_at: datetime  # of the server's certificate

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """As gRPC wants it."""
        return grpc.ssl_server_certificate_configuration([(self.key, self.cert)], self.client_ca)


def read_material(paths: TlsPaths) -> TlsMaterial:
    """Read and check the files together; raise SecurityError naming the one to correct."""
    held = [read_bounded(path, "tls") for path in paths.all]
    _context(paths)
    if held != [read_bounded(path, "tls") for path in paths.all]:
        raise SecurityError("tls: the files changed while they were read; they are read again shortly")
    try:
        leaf = x509.load_pem_x509_certificates(held[0])[0]
    except (ValueError, IndexError) as error:
        raise SecurityError(f"tls_cert: {paths.cert} holds no certificate in PEM") from error
    return TlsMaterial(held[0], held[1], held[2] if paths.client_ca else None, leaf.not_valid_after_utc)


def _context(paths: TlsPaths) -> ssl.SSLContext:
    """Load into a context: OpenSSL refuses what does not fit together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(paths.cert, paths.key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise SecurityError(
            f"tls: {paths.cert} and {paths.key} are no certificate and its own unencrypted key, both in PEM"
        ) from error
    if paths.client_ca:
        try:
            context.load_verify_locations(paths.client_ca)
        except (ssl.SSLError, OSError) as error:
            raise SecurityError(
                f"tls_client_ca: {paths.client_ca} holds no certificate authority in PEM"
            ) from error
    return context


def _no_password() -> str:
    # Without it OpenSSL would ask on the terminal.
    raise ValueError("the key is encrypted")


class Tls:
    """The material in force, for gRPC and for the side port."""

    def __init__(self, paths: TlsPaths) -> None:
        """Read the files; raise SecurityError."""
        self._paths = paths
        self.files = WatchedFiles("the TLS certificate", paths.all, lambda: read_material(paths))
        self._served = self.files.value
        self._http: ssl.SSLContext | None = None

    @property
    def asks_clients(self) -> bool:
        """Whether clients must show a certificate."""
        return self._paths.client_ca is not None

    def refresh(self) -> bool:
        """Look at the files; put what is new into force for new connections."""
        if not self.files.refresh():
            return False
        if self._http is not None:
            self._http = self._fresh_context()
        return True

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a gRPC port. gRPC asks for the newest certificate at every handshake."""

        def newest() -> Any:  # noqa: ANN401 -- None for no change, which the stubs do not know
            material = self.files.value
            if material is self._served:
                return None
            self._served = material
            return material.configuration()

        return grpc.dynamic_ssl_server_credentials(
            self._served.configuration(), newest, require_client_authentication=self.asks_clients
        )

    def http_context(self) -> ssl.SSLContext:
        """For the side port: a client certificate is checked where there is one, and probes have none."""
        front = self._fresh_context()
        self._http = front

        def newest(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _: ssl.SSLContext) -> None:
            # A context that is loaded again would go on trusting the authorities it had.
            if self._http is not None:
                connection.context = self._http

        front.sni_callback = newest
        return front

    def _fresh_context(self) -> ssl.SSLContext:
        context = _context(self._paths)
        if self.asks_clients:
            context.verify_mode = ssl.CERT_OPTIONAL
            # Resumed sessions would go on although the authority of their certificate was taken out.
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.num_tickets = 0
        return context
