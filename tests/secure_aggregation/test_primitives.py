"""Sharing, masks, keys: known answers, and what must not be seen."""

from __future__ import annotations

import hmac

import numpy as np
import pytest

from flower_privsyn.errors import ProtocolError
from flower_privsyn.secure_aggregation import keys, shamir
from flower_privsyn.secure_aggregation.masks import add_mask
from tests.support.secure import chi_square, node_key


def slow_product(first: int, second: int) -> int:
    """Two elements of the field, multiplied as polynomials over two elements."""
    product = 0
    for bit in range(16):
        if second >> bit & 1:
            product ^= first << bit
    for bit in range(31, 15, -1):
        if product >> bit & 1:
            product ^= shamir.POLYNOMIAL << (bit - 16)
    return product


class TestSharing:
    def test_products_are_those_of_the_field(self) -> None:
        generator = np.random.default_rng(0)
        pairs = generator.integers(0, 2**16, size=(2, 300)).astype(np.uint16)
        pairs[:, 0] = 0
        pairs[:, 1] = 2**16 - 1
        expected = [slow_product(int(a), int(b)) for a, b in pairs.T]
        assert shamir.multiply(pairs[0], pairs[1]).tolist() == expected
        # x generates all of it, so the logarithms are those of every element.
        assert len(set(shamir._tables()[1][: 2**16 - 1].tolist())) == 2**16 - 1

    @pytest.mark.parametrize(("count", "threshold"), [(1, 1), (5, 1), (5, 3), (5, 5), (300, 147)])
    def test_any_shares_enough_give_the_secret_back(self, count: int, threshold: int) -> None:
        secret = bytes(range(32))
        shares = shamir.split(secret, points=range(1, count + 1), threshold=threshold)
        generator = np.random.default_rng(1)
        for _ in range(5):
            chosen = generator.permutation(list(shares))[:threshold]
            assert (
                shamir.combine({int(p): shares[int(p)] for p in chosen}, threshold=threshold)
                == secret
            )
        with pytest.raises(ProtocolError, match=f"{threshold - 1} shares of a secret came"):
            shamir.combine({int(p): shares[int(p)] for p in chosen[1:]}, threshold=threshold)

    def test_one_share_too_few_is_uniform_whatever_the_secret(self) -> None:
        for secret in (bytes(32), b"\xff" * 32):
            seen = b"".join(
                shamir.split(secret, points=(1, 2, 3), threshold=3)[point]
                for _ in range(2000)
                for point in (1, 2)
            )
            assert chi_square(seen) < 400  # 255 degrees of freedom: 6 standard deviations above

    def test_a_known_answer(self) -> None:
        # By hand: the polynomial 7 + 3 z over the field, at 1 and 2, read at 0.
        values = {z: (7 ^ slow_product(3, z)).to_bytes(2, "little") for z in (1, 2)}
        assert shamir.combine(values, threshold=2) == (7).to_bytes(2, "little")

    def test_points_must_differ(self) -> None:
        for points in ([1, 1], [0, 1], [1, 2**16]):
            with pytest.raises(ValueError, match="points of shares"):
                shamir.split(bytes(32), points=points, threshold=2)


class TestMasks:
    def test_a_mask_is_the_stream_of_chacha20(self) -> None:
        # RFC 8439, A.1, test vector 1: key, nonce and counter 0.
        vector = np.zeros(8, dtype=np.uint64)
        add_mask(vector, bytes(32))
        assert vector.astype("<u8").tobytes().hex() == (
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        )

    @pytest.mark.parametrize("length", [0, 1, 2**15 - 1, 2**15, 2**15 + 1, 100_000])
    def test_masks_cancel_exactly(self, length: int) -> None:
        values = np.random.default_rng(2).integers(0, 2**64, size=length, dtype=np.uint64)
        masked = values.copy()
        add_mask(masked, b"k" * 32)
        assert not length or (masked != values).mean() > 0.99
        add_mask(masked, b"k" * 32, subtract=True)
        assert np.array_equal(masked, values)


class TestKeys:
    def test_known_answers(self) -> None:
        # RFC 8032, 7.1, test 1.
        key = keys.NodeKey(
            bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
        )
        assert key.public.hex() == (
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        )
        assert key.sign(b"").hex().startswith("e5564300c360ac729086e2cc806e828a")
        # RFC 7748, 5.2, first vector, and HKDF (RFC 5869) written out.
        scalar = "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"
        public = "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c"
        shared = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
        made = keys.Agreement(bytes.fromhex(scalar)).key(bytes.fromhex(public), "pair", b"c")
        extracted = hmac.digest(keys.VERSION, bytes.fromhex(shared), "sha256")
        info = keys.digest("pair", b"c")
        assert made == hmac.digest(extracted, info + bytes([1]), "sha256")

    def test_both_sides_derive_one_key_for_each_use(self) -> None:
        (mine, my_public), (theirs, their_public) = keys.new_agreement(), keys.new_agreement()
        found = {
            (label, context): keys.Agreement(mine).key(their_public, label, context)
            for label in ("seal", "pair")
            for context in (b"", b"a", b"b")
        }
        for (label, context), key in found.items():
            assert keys.Agreement(theirs).key(my_public, label, context) == key
        assert len(set(found.values())) == len(found)

    def test_a_key_that_agrees_with_everybody_is_refused(self) -> None:
        with pytest.raises(ProtocolError, match="not one of X25519"):
            keys.Agreement(keys.new_agreement()[0]).key(bytes(32), "pair", b"")

    def test_what_is_sealed_is_opened_as_it_was_or_not_at_all(self) -> None:
        sealed = keys.seal(b"k" * 32, b"share", about=b"round 3")
        assert keys.unseal(b"k" * 32, sealed, about=b"round 3") == b"share"
        for key, data, about in (
            (b"x" * 32, sealed, b"round 3"),
            (b"k" * 32, sealed[:-1] + bytes([sealed[-1] ^ 1]), b"round 3"),
            (b"k" * 32, sealed, b"round 4"),
        ):
            with pytest.raises(ProtocolError, match="was changed, or belongs to another round"):
                keys.unseal(key, data, about=about)

    def test_no_two_lists_have_one_digest(self) -> None:
        lists = [(b"b", b"c"), (b"bc",), (b"b", b"c", b""), (b"", b"bc"), (b"bc", b"")]
        digests = {keys.digest(label, *parts) for label in ("a", "ab") for parts in lists}
        assert len(digests) == 10

    def test_a_signature_is_that_of_one_key_on_one_message(self) -> None:
        signature = node_key(1).sign(b"message")
        assert keys.is_signed(b"message", signature, by=node_key(1).public)
        assert not keys.is_signed(b"messagf", signature, by=node_key(1).public)
        assert not keys.is_signed(b"message", signature, by=node_key(2).public)
        assert not keys.is_signed(b"message", signature, by=b"short")
