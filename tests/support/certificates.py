"""Certificates, made for one test."""

from __future__ import annotations

import datetime
import ipaddress
import pathlib
import ssl
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PEM = serialization.Encoding.PEM


def write_self_signed(
    folder: pathlib.Path,
    begins: datetime.timedelta = datetime.timedelta(hours=-1),
    ends: datetime.timedelta = datetime.timedelta(days=2),
) -> tuple[pathlib.Path, pathlib.Path]:
    """Write a certificate, valid from and until then by now, and its key as PEM files; return both paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


def self_signed(folder: pathlib.Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the server's and the client's side of TLS with such a certificate."""
    cert, key = write_self_signed(folder)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    return server, ssl.create_default_context(cafile=str(cert))


class Authority:
    """Who signs certificates, of this test alone; all files are in ``folder``."""

    def __init__(self, folder: pathlib.Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._signed(self._name, self._key, [], 48.0, None).public_bytes(PEM))

    def certificate(
        self,
        name: str,
        *names: x509.GeneralName,
        hours: float = 48.0,
        usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
    ) -> tuple[pathlib.Path, pathlib.Path]:
        """Write one that ends in so many hours, and its key; return both paths."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        cert_file, key_file = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        cert_file.write_bytes(self._signed(subject, key, names, hours, usage).public_bytes(PEM))
        key_file.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        return cert_file, key_file

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        names: Sequence[x509.GeneralName],
        hours: float,
        usage: x509.ObjectIdentifier | None,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=96))
            .not_valid_after(now + datetime.timedelta(hours=hours))
            .add_extension(x509.BasicConstraints(ca=usage is None, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if usage is None:
            # Python 3.13 asks for it.
            only_signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            made = made.add_extension(only_signs, critical=True)
        else:
            made = made.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return made.sign(self._key, hashes.SHA256())
