"""Keys, and what is made with them: signatures, agreement, derivation, sealing. 128-bit security.

All primitives are the `cryptography` package's: Ed25519, X25519, HKDF and HMAC with SHA-256, and
ChaCha20-Poly1305. Every use of a key has a label of its own.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Annotated, Final, TypeAlias

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from flower_privsyn.errors import ProtocolError

VERSION: Final = b"flower-privsyn secure aggregation 3"

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
SEAL_BYTES: Final = 16

Secret: TypeAlias = Annotated[bytes, KEY_BYTES]
Signature: TypeAlias = Annotated[bytes, SIGNATURE_BYTES]

_NONCE: Final = bytes(12)  # every key of a seal is used once


def digest(label: str, *parts: bytes) -> bytes:
    """SHA-256 of a label and of parts, each with its length: no two lists have one encoding."""
    total = hashlib.sha256()
    for part in (VERSION, label.encode(), *parts):
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.digest()


def whole(*numbers: int) -> bytes:
    """Whole numbers in 0 .. 2^64 - 1 as bytes, 8 each."""
    return b"".join(number.to_bytes(8, "little") for number in numbers)


class NodeKey:
    """The Ed25519 key by which other nodes know a node.

    Args:
        secret: 32 bytes.
    """

    def __init__(self, secret: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = self._key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> NodeKey:
        """A fresh key."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @property
    def secret(self) -> bytes:
        """32 bytes, for the node's own disk."""
        return self._key.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """The signature on a message, 64 bytes."""
        return self._key.sign(message)


@lru_cache(maxsize=2**12)
def is_signed(message: bytes, signature: bytes, *, by: bytes) -> bool:
    """Whether a signature on a message is that of a public key.

    A process that answers for many nodes is shown the same signatures with every message.
    """
    try:
        Ed25519PublicKey.from_public_bytes(by).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def new_agreement() -> tuple[bytes, bytes]:
    """A fresh X25519 key: secret and public, 32 bytes each."""
    key = X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def public_of(secret: bytes) -> bytes:
    """The public half of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


class Agreement:
    """One side's secret X25519 key, read once for many others.

    Args:
        secret: 32 bytes.
    """

    def __init__(self, secret: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(secret)

    def key(self, public: bytes, label: str, context: bytes) -> bytes:
        """A key of 32 bytes that both sides derive, for one use.

        Raises:
            ProtocolError: The other side's key is none that an honest side makes.
        """
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise ProtocolError("a node's public key is not one of X25519") from None
        return derive(shared, label, context)


def derive(secret: bytes, label: str, context: bytes) -> bytes:
    """A key of 32 bytes from a secret, for one use (HKDF with SHA-256)."""
    info = digest(label, context)
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=VERSION, info=info).derive(secret)


def seal(key: bytes, text: bytes, *, about: bytes) -> bytes:
    """Encrypt and authenticate; a key must be used once.

    Args:
        key: 32 bytes.
        text: what is sealed.
        about: what is authenticated with it and not sealed.
    """
    return ChaCha20Poly1305(key).encrypt(_NONCE, text, about)


def unseal(key: bytes, sealed: bytes, *, about: bytes) -> bytes:
    """Return what was sealed.

    Raises:
        ProtocolError: It was changed, or sealed with another key or about something else.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, about)
    except InvalidTag:
        raise ProtocolError("a sealed share was changed, or belongs to another round") from None
