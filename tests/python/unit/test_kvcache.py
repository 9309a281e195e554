"""Every call of `octavo.KVCache` through Python: what it returns, and what it refuses."""

import numpy as np
import pytest

import octavo


@pytest.fixture
def cache() -> octavo.KVCache:
    return octavo.KVCache(8, 4)


def opened(cache: octavo.KVCache, tokens: range) -> int:
    seq = cache.open(tokens)
    cache.reserve(seq, len(tokens))
    cache.advance(seq, tokens[cache.num_computed(seq) :])
    return seq


def test_open_adopts_the_longest_hit_and_leaves_a_token(cache):
    opened(cache, range(8))
    assert cache.match(range(8)) == 4
    assert cache.num_computed(cache.open(range(9))) == 8


def test_open_without_tokens_has_computed_none(cache):
    assert cache.num_computed(cache.open()) == 0
    assert cache.stats().prefix_queries == 0


def test_salt_and_extra_keys_isolate(cache):
    seq = cache.open(range(8), salt=b"a", extra_keys=((0, None, "tenant", b"x"),))
    cache.reserve(seq, 8)
    cache.advance(seq, range(8))
    same = {"salt": b"a", "extra_keys": [(0, None, "tenant", b"x")]}
    assert cache.match(range(9), **same) == 8
    assert cache.match(range(9)) == 0
    assert cache.match(range(9), salt=b"a") == 0


def test_reserve_beyond_the_pool_is_out_of_blocks_with_numbers(cache):
    seq = cache.open()
    assert cache.can_reserve(seq, 32)
    assert not cache.can_reserve(seq, 33)
    with pytest.raises(octavo.OutOfBlocks) as caught:
        cache.reserve(seq, 33)
    assert (caught.value.needed, caught.value.available) == (9, 8)
    assert cache.stats().held == 0


def test_tables_are_padded_int32(cache):
    first, second = opened(cache, range(6)), opened(cache, range(20, 29))
    table = cache.table(second)
    assert (table.dtype, table.tolist()) == (np.int32, [2, 3, 4])
    tables = cache.tables(np.array([first, second]))
    assert (tables.dtype, tables.tolist()) == (np.int32, [[0, 1, 0], [2, 3, 4]])
    assert cache.tables([]).shape == (0, 0)


def test_csr_gives_flashinfer_its_three_arrays(cache):
    first, second = opened(cache, range(6)), opened(cache, range(20, 28))
    arrays = cache.csr([first, second], [5, 8])
    assert [array.tolist() for array in arrays] == [[0, 2, 4], [0, 1, 2, 3], [1, 4]]
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}


def test_slots_are_int64(cache):
    seq = opened(cache, range(6))
    slots = cache.slots([seq], [3], [2])
    assert (slots.dtype, slots.tolist()) == (np.int64, [3, 4])


def test_fork_shares_and_the_writer_copies(cache):
    seq = opened(cache, range(6))
    child = cache.fork(seq)
    assert cache.table(child).tolist() == cache.table(seq).tolist() == [0, 1]
    cache.reserve(child, 7)
    ops = cache.take_ops()
    assert (ops.copies.dtype, ops.copies.tolist()) == (np.int32, [[1, 2, 2]])
    assert ops.zero.shape == (0,)
    assert not ops.copies.flags.writeable


def test_ops_views_outlive_the_cache():
    cache = octavo.KVCache(8, 4)
    cache.reserve(cache.fork(opened(cache, range(6))), 7)
    copies = cache.take_ops().copies
    del cache
    assert copies.tolist() == [[1, 2, 2]]


def test_truncate_frees_blocks(cache):
    seq = opened(cache, range(6))
    cache.truncate(seq, 4)
    assert cache.table(seq).tolist() == [0]
    with pytest.raises(octavo.StateError):
        cache.truncate(seq, 5)


def test_steps_end_oldest_first(cache):
    first, second = cache.begin_step(), cache.begin_step()
    for wrong in (second, 99, 0, -1):
        with pytest.raises(octavo.StateError):
            cache.end_step(wrong)
    cache.end_step(first)
    cache.end_step(second)
    assert cache.stats().open_steps == 0


def test_clear_only_when_nothing_is_held(cache):
    seq = opened(cache, range(8))
    assert not cache.clear()
    cache.close(seq)
    assert cache.stats().cached == 2
    assert cache.clear()
    assert cache.stats().blank == 8


def test_stats_are_values(cache):
    stats = cache.stats()
    assert stats == cache.stats()
    assert stats.as_dict()["num_blocks"] == stats.num_blocks == 8
    assert set(stats.as_dict()) == {name for name in dir(stats) if name[0] != "_"} - {"as_dict"}
    assert repr(stats).startswith("CacheStats(num_blocks=8, usable=8, ")
    cache.open([1, 2])
    assert stats != cache.stats()
    with pytest.raises(AttributeError):
        stats.held = 3


def test_lesson_62_tokens_own_4_blocks():
    cache = octavo.KVCache(64)
    opened(cache, range(62))
    picture = cache.draw()
    assert picture.splitlines()[0] == "64 blocks x 16 tokens: 4 held, 0 cached, 0 fenced, 60 blank"
    assert "A: 62 tokens in 4 blocks (0 1 2 3), 2 of 64 slots unused" in picture
    cache.audit()


TOKENS = np.arange(6, dtype=np.int32)


@pytest.mark.parametrize(
    "tokens",
    [
        TOKENS,
        TOKENS.astype(np.int64),
        TOKENS.astype(np.uint8),
        TOKENS.astype(np.uint64),
        TOKENS.astype(">i4"),
        np.arange(12, dtype=np.int32)[::2] // 2,
        np.repeat(TOKENS, 2)[::2],
        np.arange(5, -1, -1, dtype=np.int32)[::-1],
        TOKENS.tolist(),
        tuple(TOKENS),
        range(6),
        memoryview(TOKENS),
    ],
    ids=lambda tokens: f"{type(tokens).__name__}-{getattr(tokens, 'dtype', '')}",
)
def test_tokens_come_in_every_integer_form(cache, tokens):
    opened(cache, range(6))
    seq = cache.open(tokens)
    assert cache.num_computed(seq) == 4
    assert cache.match(range(5, -1, -1)) == 0


@pytest.mark.parametrize(
    "tokens",
    [
        [1.0],
        np.array([1.0]),
        np.array([]),
        [True],
        np.array([True]),
        [[1, 2]],
        np.zeros((1, 1), np.int32),
        np.int32(3),
        3,
        None,
        "12",
        b"12",
        bytearray(b"12"),
        [-1],
        np.array([-1], np.int32),
        np.array([-1], np.int64),
        [2**31],
        np.array([2**31]),
        np.array([2**63], np.uint64),
        range(2**31, 2**31 + 1),
        range(2**70),
        range(-1, 2),
        [2**70],
        [None],
        ["1"],
        {1: 2},
        {1},
        object(),
    ],
    ids=repr,
)
def test_bad_tokens_name_the_argument_and_change_nothing(cache, tokens):
    before = cache.stats()
    with pytest.raises(octavo.RequestError) as caught:
        cache.open(tokens)
    assert caught.value.argument == "tokens"
    assert cache.stats() == before


@pytest.mark.parametrize(
    ("extra_keys", "argument"),
    [
        (((0, None, "k", b"v"), (0, None, "", b"v")), "extra_keys[1]"),
        (((3, 3, "k", b"v"),), "extra_keys[0]"),
        (((3, 1, "k", b"v"),), "extra_keys[0]"),
        (((-1, 1, "k", b"v"),), "extra_keys[0]"),
        (((0, 2**70, "k", b"v"),), "extra_keys[0]"),
        (((True, 2, "k", b"v"),), "extra_keys[0]"),
        (((0, 2.0, "k", b"v"),), "extra_keys[0]"),
        (((0, None, b"k", b"v"),), "extra_keys[0]"),
        (((0, None, "\ud800", b"v"),), "extra_keys[0]"),
        (((0, None, "k", "v"),), "extra_keys[0]"),
        (((0, None, "k"),), "extra_keys[0]"),
        ([[0, None, "k", b"v"]], "extra_keys[0]"),
        ("abc", "extra_keys"),
        (None, "extra_keys"),
        (7, "extra_keys"),
    ],
)
def test_malformed_extra_keys_are_named(cache, extra_keys, argument):
    for call in (cache.open, cache.match):
        with pytest.raises(octavo.RequestError) as caught:
            call([1], extra_keys=extra_keys)
        assert caught.value.argument == argument
    assert cache.stats().sequences == 0


@pytest.mark.parametrize("salt", [None, "a", 1])
def test_salt_is_bytes(cache, salt):
    with pytest.raises(octavo.RequestError) as caught:
        cache.open([1], salt=salt)
    assert caught.value.argument == "salt"


CALLS = {
    "num_computed": (),
    "reserve": (1,),
    "can_reserve": (1,),
    "advance": ([],),
    "truncate": (0,),
    "fork": (),
    "close": (),
    "table": (),
}


@pytest.mark.parametrize("call", CALLS)
def test_dead_and_foreign_handles_are_told_apart(cache, call):
    dead = cache.open()
    cache.close(dead)
    with pytest.raises(octavo.StaleHandleError) as stale:
        getattr(cache, call)(dead, *CALLS[call])
    assert stale.value.handle == dead
    request = octavo.KVCache(1).open() - (1 << 60)
    for foreign in (0, -1, 42, 2**63 - 1, 2**70, -(2**70), request):
        with pytest.raises(octavo.UnknownHandleError) as unknown:
            getattr(cache, call)(foreign, *CALLS[call])
        assert unknown.value.handle == foreign
    for thing in (1.0, "1", None):
        with pytest.raises(TypeError):
            getattr(cache, call)(thing, *CALLS[call])


def test_array_calls_check_every_handle(cache):
    alive, dead = cache.open(), cache.open()
    cache.close(dead)
    for call in (
        cache.tables,
        lambda seqs: cache.csr(seqs, [0, 0]),
        lambda seqs: cache.slots(seqs, [0, 0], [0, 0]),
    ):
        with pytest.raises(octavo.StaleHandleError):
            call([alive, dead])
        with pytest.raises(octavo.UnknownHandleError):
            call(np.array([alive, 7]))
        with pytest.raises(octavo.RequestError):
            call([alive, 1.5])


def test_of_two_errors_the_handle_comes_first(cache):
    dead = cache.open()
    cache.close(dead)
    with pytest.raises(octavo.StaleHandleError):
        cache.reserve(dead, -1)
    with pytest.raises(octavo.StaleHandleError):
        cache.advance(dead, [1.5])


def test_bad_numbers_are_named(cache):
    seq = cache.open()
    for call in (cache.reserve, cache.can_reserve, cache.truncate):
        for wrong in (-1, 2**70):
            with pytest.raises(octavo.RequestError) as caught:
                call(seq, wrong)
            assert caught.value.argument == "num_tokens"
        with pytest.raises(TypeError):
            call(seq, 1.5)
    with pytest.raises(octavo.OutOfBlocks):
        cache.reserve(seq, 2**62)
    with pytest.raises(octavo.RequestError) as caught:
        cache.csr([seq], [-1])
    assert caught.value.argument == "lens"
    with pytest.raises(octavo.RequestError):
        cache.csr([seq], [0, 0])
    with pytest.raises(octavo.StateError):
        cache.slots([seq], [2**62], [2**62])


def test_advance_without_room_is_a_state_error(cache):
    seq = cache.open()
    with pytest.raises(octavo.StateError):
        cache.advance(seq, [1])
    assert cache.num_computed(seq) == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_blocks", 0),
        ("num_blocks", -1),
        ("num_blocks", 2**31),
        ("num_blocks", 2**70),
        ("num_blocks", True),
        ("num_blocks", 8.0),
        ("num_blocks", None),
        ("block_size", 0),
        ("block_size", 257),
        ("block_size", -(2**70)),
        ("block_size", None),
        ("groups", ()),
        ("groups", (octavo.KVGroup(), octavo.KVGroup())),
        ("groups", (octavo.KVGroup(window=4),)),
        ("groups", 3),
        ("prefix_caching", 1),
        ("partial_hits", True),
        ("eviction", "fifo"),
        ("eviction", 3),
        ("hash_seed", -1),
        ("hash_seed", 2**64),
        ("host_blocks", 1),
        ("disk_blocks", 1),
        ("events", True),
        ("_hash_bits", 0),
    ],
)
def test_settings_out_of_range_carry_field_value_and_range(field, value):
    options = {"num_blocks": 8, field: value}
    with pytest.raises(octavo.ConfigError) as caught:
        octavo.KVCache(**options)
    assert caught.value.field == field
    assert caught.value.value is value
    assert caught.value.range


def test_unknown_keyword_is_a_type_error():
    with pytest.raises(TypeError, match="blocksize"):
        octavo.KVCache(8, blocksize=4)


def test_colliding_hashes_change_nothing_but_their_count():
    cache = octavo.KVCache(64, 1, _hash_bits=1)
    for first in range(6):
        opened(cache, range(first, first + 6))
    assert cache.match(range(7)) == 6
    assert cache.match([9, 9, 9]) == 0
    assert cache.stats().hash_collisions > 0
    cache.audit()


def test_many_prompts_are_opened_or_none(cache):
    held = cache.stats().sequences
    with pytest.raises(octavo.RequestError) as caught:
        cache.open_many([[1, 2], [1, -1]])
    assert caught.value.argument == "prompts[1]"
    for wrong in ("ab", np.zeros((2, 2), np.int32), 3):
        with pytest.raises(octavo.RequestError):
            cache.open_many(wrong)
    assert cache.stats().sequences == held
    seqs = cache.open_many([np.array([1, 2], np.int32), (3,)])
    assert seqs.dtype == np.int64
    cache.reserve_many(seqs, [2, 1])
    with pytest.raises(octavo.RequestError) as caught:
        cache.advance_many(seqs, [1, 2, 3], [2, 2])
    assert caught.value.argument == "counts"
    cache.advance_many(seqs, [1, 2, 3], [2, 1])
    assert [cache.num_computed(seq) for seq in seqs] == [2, 1]
    cache.close_many(seqs)
    with pytest.raises(octavo.StaleHandleError):
        cache.close_many(seqs)


def test_pin_is_no_sequence_and_no_sequence_is_a_pin(cache):
    pin, seq = cache.pin([1, 2]), cache.open()
    with pytest.raises(octavo.UnknownHandleError):
        cache.close(pin)
    with pytest.raises(octavo.UnknownHandleError):
        cache.unpin(seq)
    with pytest.raises(octavo.RequestError) as caught:
        cache.pin([1, 2], expires=0)
    assert caught.value.argument == "expires"
    cache.unpin(pin)
    with pytest.raises(octavo.StaleHandleError):
        cache.unpin(pin)


def test_null_block_is_never_given_out():
    cache = octavo.KVCache(4, 2, reserve_null_block=True)
    seq = cache.open()
    cache.reserve(seq, 6)
    assert cache.table(seq).tolist() == [1, 2, 3]
    with pytest.raises(octavo.OutOfBlocks):
        cache.reserve(seq, 7)
    with pytest.raises(octavo.ConfigError) as caught:
        octavo.KVCache(1, reserve_null_block=True)
    assert caught.value.field == "num_blocks"


def test_masked_array_is_refused(cache):
    with pytest.raises(octavo.RequestError, match="mask") as caught:
        cache.open(np.ma.masked_array(np.array([1, 2], np.int32), [True, False]))
    assert caught.value.argument == "tokens"


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_is_not_the_arguments_fault_passes_through(cache, error):
    class Hostile:
        def __array__(self, *_, **__):
            raise error

    with pytest.raises(error):
        cache.open(Hostile())


def test_a_long_value_costs_once_however_many_blocks_it_touches():
    keys = [(0, None, "image", bytes(100_000)), *((s, s + 3, "a", b"") for s in range(1_000))]
    cache = octavo.KVCache(4_000, 1)
    seq = cache.open(extra_keys=keys)
    cache.reserve(seq, 3_000)
    cache.advance(seq, [0] * 3_000)
    assert cache.match([0] * 3_001, extra_keys=keys) == 3_000
    assert cache.match([0] * 3_001, extra_keys=keys[1:]) == 0
    cache.audit()
