"""Certificates for tests, signed by an authority of the test's own."""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.kept_secrets import keep, keep_private_key

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


def named(common: str, *units: str) -> x509.Name:
    """A distinguished name, from the country down, with two organisational units or more."""
    return x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "PT"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Harbour, Inc"),
            *[
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)
                for unit in ("ops", *units)
            ],
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


@dataclass(frozen=True)
class Authority:
    """A certificate authority with a folder for its files."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, folder: Path, name: str = "authority") -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named(name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - DAY)
            .not_valid_after(NOW + 10 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        folder.mkdir(parents=True, exist_ok=True)
        authority = cls(folder, key, certificate)
        authority.trusted.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return authority

    @property
    def trusted(self) -> Path:
        """The file that clients trust."""
        return self.folder / "authority.pem"

    def issue(
        self,
        name: str,
        *,
        password: str | None = None,
        days: int = 5,
        path: Path | None = None,
        host: str = "127.0.0.1",
        units: tuple[str, ...] = (),
    ) -> Path:
        """A file with a key and a certificate of this name, which is valid for `host`."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(named(name, *units))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - 9 * DAY)
            .not_valid_after(NOW + days * DAY)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))]), critical=False
            )
            .sign(self.key, hashes.SHA256())
        )
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            keep(password, f"the password of the key of {name}")
            encryption = serialization.BestAvailableEncryption(password.encode())
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )
        keep_private_key(pem, name)
        pem += certificate.public_bytes(serialization.Encoding.PEM)
        path = path or self.folder / f"{name}.pem"
        path.write_bytes(pem)
        return path

    def client(self, certificate: Path | None = None) -> ssl.SSLContext:
        """The context of a client that trusts this authority."""
        context = ssl.create_default_context(cafile=self.trusted)
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context
