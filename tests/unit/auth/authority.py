"""A certificate authority for tests: certificates of any age, for any name, made in a moment."""

import ipaddress
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from controller.adapters.clock import SystemClock

HOUR = timedelta(hours=1)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class Authority:
    """Signs certificates and writes them where a test wants them."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._cert = self._signed(name, self._key, self._key, None, [], -HOUR, 24 * HOUR)
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def _signed(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        signer: ec.EllipticCurvePrivateKey,
        issuer: x509.Certificate | None,
        names: list[x509.GeneralName],
        begins: timedelta,
        ends: timedelta,
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now: datetime = SystemClock().now()
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.subject if issuer else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(signer, hashes.SHA256())

    def server(
        self, name: str = "server", *, begins: timedelta = -HOUR, ends: timedelta = 12 * HOUR
    ) -> tuple[Path, Path]:
        """Write a certificate for this machine; return it and its key."""
        names: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        return self._written(name, names, begins, ends)

    def client(
        self, name: str, uri: str | None = None, *, begins: timedelta = -HOUR, ends: timedelta = 12 * HOUR
    ) -> tuple[Path, Path]:
        """Write a certificate of a client, with a URI or with its common name only; return it and its key."""
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)] if uri else []
        return self._written(name, names, begins, ends)

    def _written(
        self, name: str, names: list[x509.GeneralName], begins: timedelta, ends: timedelta
    ) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        signed = self._signed(name, key, self._key, self._cert, names, begins, ends)
        cert_path, key_path = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        cert_path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(_pem(key))
        return cert_path, key_path
