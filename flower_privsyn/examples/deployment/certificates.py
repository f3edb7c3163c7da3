"""Make the keys of a federation: TLS for the SuperLink, and one key per SuperNode.

    python certificates.py FOLDER --host superlink.example.org --host 127.0.0.1 --nodes north south

writes into FOLDER, once:

    ca.crt                      for every machine: by it they know the SuperLink
    ca.key                      for nobody but you: keep it off all machines, it makes new ones
    server.pem, server.key      for the SuperLink
    nodes/NAME, nodes/NAME.pub  for one SuperNode each, and for `flwr supernode register`

Keys that are there are left as they are, so that a node can be added later. The keys by which
nodes know one another in secure aggregation are others: each owner makes one (`privsyn node key
--init`), and its secret half never leaves the node.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAYS = 825


def main() -> None:
    """Read the command line and write what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", action="append", default=[], help="of the SuperLink, name or IP")
    parser.add_argument("--nodes", nargs="*", default=[])
    options = parser.parse_args()
    folder = options.folder
    (folder / "nodes").mkdir(parents=True, exist_ok=True)
    if not (folder / "server.pem").exists():
        make_server(folder, options.host or ["127.0.0.1", "localhost"])
    for name in options.nodes:
        make_node(folder / "nodes" / name)


def make_server(folder: Path, hosts: list[str]) -> None:
    """A certificate authority, and the SuperLink's certificate under it."""
    authority, server = (
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP384R1()),
    )
    issuer = _name("flower-privsyn federation")
    root = (
        _builder(issuer, issuer, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    certificate = (
        _builder(_name(hosts[0]), issuer, server.public_key())
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(authority, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    _write(folder / "ca.crt", root.public_bytes(pem), secret=False)
    _write(folder / "ca.key", _secret(authority), secret=True)
    _write(folder / "server.key", _secret(server), secret=True)
    _write(folder / "server.pem", certificate.public_bytes(pem), secret=False)


def make_node(path: Path) -> None:
    """A SuperNode's key, as `ssh-keygen -t ecdsa -b 384` makes it."""
    if path.exists():
        return
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write(path.with_name(f"{path.name}.pub"), public + b"\n", secret=False)
    _write(path, _secret(key, serialization.PrivateFormat.OpenSSH), secret=True)


def _secret(
    key: ec.EllipticCurvePrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=DAYS))
    )


def _write(path: Path, data: bytes, *, secret: bool) -> None:
    mode = 0o600 if secret else 0o644
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
