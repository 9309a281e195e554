"""Scenarios about identity: equal tokens that are not the same block."""

from __future__ import annotations

from typing import Any

import pytest

import octavo
from octavo import RequestError
from support.drive import Engine, remember
from support.views import CACHE_STATS, stats_view


def test_s023_an_adapter_never_equals_a_salt_or_a_key_of_another_kind() -> None:
    """The same text "k" as adapter, salt, tenant and image: five identities, no cross hit (L5)."""
    identities: list[dict[str, Any]] = [
        {},
        {"salt": b"k"},
        {"extra_keys": [(0, None, "adapter", b"k")]},
        {"extra_keys": [(0, None, "tenant", b"k")]},
        {"extra_keys": [(0, None, "adapterk", b"")]},
        {"extra_keys": [(0, None, "adapte", b"rk")]},
        {"extra_keys": [(0, None, "a", b"k"), (0, None, "b", b"k")]},
        {"extra_keys": [(0, None, "a", b"kbk")]},
        {"salt": b"k", "extra_keys": [(0, None, "adapter", b"k")]},
    ]
    cache = octavo.KVCache(16, 4)
    for index, identity in enumerate(identities):
        assert cache.match([*range(4), 0], **identity) == 0
        remember(cache, range(4), **identity)
        hits = [cache.match([*range(4), 0], **other) for other in identities]
        assert hits == [4] * (index + 1) + [0] * (len(identities) - index - 1)
    assert cache.stats().published_blocks == len(identities)


def test_s023_an_adapter_number_is_the_extra_key_that_the_contract_names() -> None:
    """The scheduler's `adapter` is eight bytes under the kind "adapter", and nothing else."""
    engine = Engine(8, 4)
    engine.add(range(4), max_tokens=0, adapter=1)
    engine.run()
    match = engine.scheduler.match
    assert match([*range(4), 0]) == 0
    assert match([*range(4), 0], salt=b"1") == 0
    key = (0, None, "adapter", (1).to_bytes(8, "little"))
    assert match([*range(4), 0], extra_keys=[key]) == 4


@pytest.mark.parametrize("bits", [1, 2, 8])
def test_s025_blocks_whose_hashes_collide_are_never_taken_for_each_other(bits: int) -> None:
    """With hashes of a few bits nearly all blocks collide; every hit is still exact (L5).

    The collisions are counted, and are the only difference.
    """
    crippled, plain = octavo.KVCache(64, 2, _hash_bits=bits), octavo.KVCache(64, 2)
    chains = [[a, b, c, d] for a in range(2) for b in range(3) for c in range(2) for d in range(2)]
    for index, chain in enumerate(chains):
        for cache in (crippled, plain):
            remember(cache, chain, salt=bytes([index % 2]))
    for chain in chains:
        for salt in (b"\0", b"\1", b""):
            assert crippled.match([*chain, 9], salt=salt) == plain.match([*chain, 9], salt=salt)
    assert plain.stats().hash_collisions == 0
    assert crippled.stats().hash_collisions > 0
    assert stats_view(crippled.stats(), CACHE_STATS) == stats_view(plain.stats(), CACHE_STATS)


def test_s026_equal_placeholders_of_different_images_share_nothing() -> None:
    """All images look like [9, 9, 9, 9]; the key on their span tells them apart.

    From the image on nothing is shared, text behind it included; text before it is.
    """
    cat, dog = ((0, 4, "image", b"cat"),), ((0, 4, "image", b"dog"),)
    tokens = [9, 9, 9, 9, 1, 2, 3, 4]
    cache = octavo.KVCache(16, 4)
    remember(cache, tokens, extra_keys=cat)
    assert cache.match([*tokens, 0], extra_keys=cat) == 8
    assert cache.match([*tokens, 0], extra_keys=dog) == 0
    assert cache.match([*tokens, 0]) == 0

    text_first = [1, 2, 3, 4, 9, 9, 9, 9, 5]
    remember(cache, text_first, extra_keys=[(4, 8, "image", b"cat")])
    assert cache.match(text_first, extra_keys=[(4, 8, "image", b"cat")]) == 8
    assert cache.match(text_first, extra_keys=[(4, 8, "image", b"dog")]) == 4
    assert cache.match(text_first) == 4


def test_s026_the_part_of_an_image_that_a_block_covers_counts() -> None:
    """The same image one token to the left covers the same block with another part of itself."""
    cache = octavo.KVCache(8, 4)
    remember(cache, [9] * 8, extra_keys=[(0, 8, "image", b"cat")])
    assert cache.match([9] * 9, extra_keys=[(0, 8, "image", b"cat")]) == 8
    assert cache.match([9] * 9, extra_keys=[(0, 7, "image", b"cat")]) == 4
    assert cache.match([9] * 9, extra_keys=[(1, 8, "image", b"cat")]) == 0
    assert cache.match([9] * 9, extra_keys=[(0, None, "image", b"cat")]) == 8


@pytest.mark.parametrize(
    "bad",
    [
        (0, 4, "image"),
        (0, 4, "image", None),
        (0, 4, None, b"cat"),
        (0, 4, "", b"cat"),
        (4, 4, "image", b"cat"),
        (-1, 4, "image", b"cat"),
        (None, 4, "image", b"cat"),
        {"start": 0, "kind": "image"},
    ],
)
def test_s028_a_malformed_identity_is_refused_and_never_weaker(bad: Any) -> None:
    """A record with a field missing must not fall back to the text-only identity (L5, L12)."""
    good = (0, None, "tenant", b"t")
    cache = octavo.KVCache(4, 4)
    remember(cache, range(4))
    for keys in ([bad], [good, bad]):
        for call in (cache.open, cache.match):
            with pytest.raises(RequestError) as caught:
                call([*range(4), 0], extra_keys=keys)
            assert caught.value.argument == f"extra_keys[{len(keys) - 1}]"
        with pytest.raises(RequestError):
            octavo.Scheduler(4).add([1], max_tokens=1, extra_keys=keys)
    assert cache.stats().sequences == 0


def test_s028_a_salt_that_is_not_bytes_is_refused() -> None:
    """A salt given as text, or left out as None, is an error and not the empty salt."""
    cache = octavo.KVCache(4, 4)
    remember(cache, range(4))
    for salt in ("s", None, 7):
        with pytest.raises((RequestError, TypeError)):
            cache.open([*range(4), 0], salt=salt)
    assert cache.stats().sequences == 0
