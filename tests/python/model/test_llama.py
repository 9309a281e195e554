"""The plain pass by hand, and the paged one against it."""

import math

import numpy as np
import pytest

import octavo
from octavo.attention import KVSpec, PagedKV, reference
from octavo.model import Batch, Llama, Rope, random_weights
from support import llamas


def by_hand(config, weights, tokens):
    """The model once more, token by token and head by head, with no array longer than a head."""

    def linear(name, x):
        bias = weights.get(f"{name}.bias", 0.0)
        return weights[f"{name}.weight"] @ x + bias

    def norm(name, x):
        scale = math.sqrt(sum(v * v for v in x) / len(x) + config.rms_norm_eps)
        return x / scale * weights[f"{name}.weight"]

    def turned(head, position):
        half, out = config.head_dim // 2, head.copy()
        for i in range(half):
            angle = position * frequency(config, i)
            a, b = head[i], head[i + half]
            out[i] = a * math.cos(angle) - b * math.sin(angle)
            out[i + half] = b * math.cos(angle) + a * math.sin(angle)
        return out

    def heads(x):
        return x.reshape(-1, config.head_dim)

    kept = [([], []) for _ in range(config.num_layers)]
    logits = []
    for position, token in enumerate(tokens):
        x = weights["model.embed_tokens.weight"][token]
        for index, (keys, values) in enumerate(kept):
            at = f"model.layers.{index}"
            inner = norm(f"{at}.input_layernorm", x)
            query = [turned(h, position) for h in heads(linear(f"{at}.self_attn.q_proj", inner))]
            keys.append(
                [turned(h, position) for h in heads(linear(f"{at}.self_attn.k_proj", inner))]
            )
            values.append(heads(linear(f"{at}.self_attn.v_proj", inner)))
            out = []
            for number, one in enumerate(query):
                of = number * config.num_kv_heads // config.num_heads
                scores = [one @ key[of] / math.sqrt(config.head_dim) for key in keys]
                shares = np.exp(np.array(scores) - max(scores))
                shares /= shares.sum()
                out.append(sum(s * value[of] for s, value in zip(shares, values, strict=True)))
            x = x + linear(f"{at}.self_attn.o_proj", np.concatenate(out))
            inner = norm(f"{at}.post_attention_layernorm", x)
            gate = linear(f"{at}.mlp.gate_proj", inner)
            fed = gate / (1 + np.exp(-gate)) * linear(f"{at}.mlp.up_proj", inner)
            x = x + linear(f"{at}.mlp.down_proj", fed)
        tied = config.tie_word_embeddings
        head = weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
        logits.append(head @ norm("model.norm", x))
    return np.array(logits)


def frequency(config, pair):
    rope = config.rope
    plain = rope.theta ** (-2 * pair / config.head_dim)
    if rope.kind == "llama3":
        length = 2 * math.pi / plain
        low = rope.original_max_position / rope.low_freq_factor
        high = rope.original_max_position / rope.high_freq_factor
        if length < high:
            return plain
        if length > low:
            return plain / rope.factor
        turns = rope.original_max_position / length
        smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        return (1 - smooth) * plain / rope.factor + smooth * plain
    return plain / rope.factor


@pytest.mark.parametrize("config", llamas.VARIANTS.values(), ids=llamas.VARIANTS.keys())
def test_plain_pass_equals_the_model_by_hand(config):
    weights = random_weights(config, 1, dtype="float64")
    tokens = [7, 3, 3, 49, 0, 12, 7, 3, 20, 21, 22, 1]
    found = Llama(config, weights, dtype="float64").plain(tokens)
    np.testing.assert_allclose(found, by_hand(config, weights, tokens), rtol=1e-10, atol=1e-10)


def test_llama3_leaves_fast_frequencies_and_divides_slow_ones():
    plain = Rope().frequencies(128, np)
    scaled = Rope("llama3", factor=8.0).frequencies(128, np)
    assert (scaled[:5] == plain[:5]).all()
    np.testing.assert_allclose(scaled[-5:] * 8, plain[-5:], rtol=1e-15)
    between = (scaled < plain) & (scaled > plain / 8)
    assert between.any()


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("config", llamas.VARIANTS.values(), ids=llamas.VARIANTS.keys())
def test_paged_pass_equals_the_plain_one_for_random_chunks(config, layout):
    model = llamas.model(config)
    draws = np.random.default_rng(5)
    block_size, num_blocks = 3, 40
    spec = KVSpec(
        num_layers=config.num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype="float64",
        layout=layout,
    )
    kv = PagedKV(spec)
    reference.poison_all(kv)
    texts = [draws.integers(config.vocab_size, size=length) for length in (1, 7, 12, 20)]
    blocks = draws.permutation(num_blocks).astype(np.int32)
    tables = np.full((4, 7), 2**31 - 1, dtype=np.int32)
    for row, text in enumerate(texts):
        count = -(-len(text) // block_size)
        tables[row, :count], blocks = blocks[:count], blocks[count:]
    done = [0, 0, 0, 0]
    while any(at < len(text) for at, text in zip(done, texts, strict=True)):
        left = [len(text) - at for at, text in zip(done, texts, strict=True)]
        chunks = {row: int(draws.integers(1, min(n, 6) + 1)) for row, n in enumerate(left) if n}
        rows = sorted(chunks, key=lambda row: chunks[row] > 1)
        decodes = sum(chunks[row] == 1 for row in rows)
        spans = [np.arange(done[row], done[row] + chunks[row]) for row in rows]
        starts = np.cumsum([0] + [chunks[row] for row in rows])
        places = [
            tables[row, span // block_size].astype(np.int64) * block_size + span % block_size
            for row, span in zip(rows, spans, strict=True)
        ]
        batch = Batch(
            decodes,
            np.concatenate([texts[row][span] for row, span in zip(rows, spans, strict=True)]),
            np.concatenate(spans).astype(np.int32),
            np.concatenate(places),
            starts.astype(np.int32),
            tables[rows],
            np.array([done[row] + chunks[row] for row in rows], dtype=np.int32),
            (starts[1:] - 1).astype(np.int32),
        )
        logits = model.forward(batch, kv, reference)
        for row, found in zip(rows, logits, strict=True):
            done[row] += chunks[row]
            expected = model.plain(texts[row][: done[row]])[-1]
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_single_precision_is_close_to_double():
    config = llamas.tiny()
    weights = random_weights(config, 1, dtype="float64")
    tokens = list(range(20))
    double = Llama(config, weights, dtype="float64").plain(tokens)
    single = Llama(config, weights, dtype="float32").plain(tokens)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, double, atol=1e-4)


def test_weights_of_the_right_type_are_not_copied():
    config = llamas.tiny()
    weights = random_weights(config, 1)
    model = Llama(config, weights)
    assert np.shares_memory(model._embedding, weights["model.embed_tokens.weight"])


@pytest.mark.parametrize(("dtype", "near"), [("float16", 0.01), ("bfloat16", 0.08)])
def test_halves_give_nearly_the_same_logits(dtype, near):
    config = llamas.tiny()
    tokens = [7, 3, 9, 1, 0, 4]
    exact = llamas.model(config, dtype="float64").plain(tokens)
    model = llamas.model(config, dtype=dtype)
    found = model.plain(tokens)
    assert found.dtype == np.float32
    assert model._embedding.dtype.name == dtype
    np.testing.assert_allclose(found, exact, atol=near * np.abs(exact).max())
    # The paged pass rounds at the same places, but for what a kernel keeps wider.
    kv = PagedKV(KVSpec(2, 4, 4, 2, 8, dtype=dtype))
    tables, lens = np.array([[2, 0]], np.int32), np.array([6], np.int32)
    slots = reference.slots_from_tables(tables, lens, 4)
    starts, positions = np.array([0, 6], np.int32), np.arange(6, dtype=np.int32)
    batch = Batch(0, np.array(tokens, np.int32), positions, slots, starts, tables, lens, positions)
    paged = model.forward(batch, kv, reference)
    assert paged.dtype == np.float32
    np.testing.assert_allclose(paged, found, atol=near * np.abs(exact).max())


def test_wrong_weights_are_named():
    config = llamas.tiny()
    weights = random_weights(config, 1)
    with pytest.raises(octavo.ConfigError, match=r"dtype = 'float8_e4m3'"):
        Llama(config, weights, dtype="float8_e4m3")
    missing = {name: weights[name] for name in weights if name != "model.norm.weight"}
    with pytest.raises(octavo.RequestError, match=r"weights: model\.norm\.weight is missing"):
        Llama(config, missing)
    with pytest.raises(octavo.RequestError, match="weights: more is not part"):
        Llama(config, weights | {"more": weights["model.norm.weight"]})
    flat = weights | {"lm_head.weight": weights["lm_head.weight"].reshape(-1)}
    with pytest.raises(octavo.RequestError, match=r"lm_head\.weight has the shape \[1600\]"):
        Llama(config, flat)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"vocab_size": 0}, "vocab_size"),
        ({"num_layers": True}, "num_layers"),
        ({"num_kv_heads": 3}, "num_kv_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps"),
    ],
)
def test_impossible_shapes_are_refused_by_field(changes, field):
    with pytest.raises(octavo.ConfigError) as caught:
        llamas.tiny(**changes)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": "yarn"}, "rope_type"),
        ({"kind": "dynamic"}, "rope_type"),
        ({"theta": 0}, "theta"),
        ({"theta": "10000"}, "theta"),
        ({"kind": "linear", "factor": 0.5}, "factor"),
        ({"kind": "llama3", "factor": 8, "low_freq_factor": 0}, "low_freq_factor"),
        ({"kind": "llama3", "factor": 8, "high_freq_factor": 1}, "high_freq_factor"),
        ({"kind": "llama3", "original_max_position": 0}, "original_max_position"),
    ],
)
def test_impossible_rotations_are_refused_by_field(changes, field):
    with pytest.raises(octavo.ConfigError) as caught:
        Rope(**changes)
    assert caught.value.field == field
