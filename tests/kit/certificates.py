"""Certificates for servers that tests start: an authority, and what it has signed."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Certificates:
    """An authority's file, and certificate and key of a server on this machine and of a client."""

    authority: Path
    server: tuple[Path, Path]
    client: tuple[Path, Path]


def make(folder: Path, *hosts: str) -> Certificates:
    """New certificates in a folder.  The server's is for these host names, else for 127.0.0.1."""
    key, own = ec.generate_private_key(ec.SECP256R1()), _name("authority")
    usage = x509.BasicConstraints(ca=True, path_length=None)
    signed = _builder(own, own, key.public_key(), key).add_extension(usage, True)
    # Python 3.13 wants this one as well.
    signed = signed.add_extension(_SIGNS, True)
    authority = folder / "authority.pem"
    authority.write_bytes(_pem(signed.sign(key, hashes.SHA256())))
    return Certificates(
        authority,
        _issue(folder, "server", own, key, hosts),
        _issue(folder, "client", own, key, ()),
    )


_SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _issue(
    folder: Path,
    name: str,
    authority: x509.Name,
    by: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    names = x509.SubjectAlternativeName([x509.DNSName(each) for each in hosts] or [here])
    signed = _builder(_name(name), authority, key.public_key(), by).add_extension(names, False)
    certificate, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.write_bytes(_pem(signed.sign(by, hashes.SHA256())))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate, key_file


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    by: ec.EllipticCurvePrivateKey,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
