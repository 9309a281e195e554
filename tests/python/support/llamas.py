"""Small Llamas, checkpoints of them, and what they say when nothing is batched or paged."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.model import Llama, LlamaConfig, Rope, Sampling, random_weights, sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": None}


def tiny(**changes: Any) -> LlamaConfig:
    """Two layers, four query and two key heads of 8, 50 tokens."""
    shape: dict[str, Any] = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
    }
    return LlamaConfig(**(shape | changes))


@cache
def model(config: LlamaConfig, seed: int = 1, dtype: str = "float64") -> Llama:
    return Llama(config, random_weights(config, seed, dtype=dtype), dtype=dtype)


def plain_tokens(
    of: Llama, prompt: Sequence[int], max_tokens: int, sampling: Sampling | None = None
) -> list[int]:
    """What the plain model says to a prompt."""
    known = list(prompt)
    for _ in range(max_tokens):
        logits = of.plain(known)[-1:]
        known += sample(logits, [sampling or Sampling()], [len(known)]).tolist()
    return known[len(prompt) :]


def config_json(config: LlamaConfig, **changes: Any) -> dict[str, Any]:
    """A config.json as Hugging Face writes it."""
    rope = config.rope
    scaling: dict[str, Any] | None = None
    if rope.kind != "default":
        scaling = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "llama3":
        scaling |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position,
        }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": rope.theta,
        "rope_scaling": scaling,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "hidden_act": "silu",
        "eos_token_id": list(config.eos_token_ids) or None,
    } | changes


def write_safetensors(path: Path, tensors: Mapping[str, Any], kind: str = "F32") -> None:
    """Writes a safetensors file; as BF16 what does not fit into it is cut off."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    place = 0
    for name, tensor in tensors.items():
        part = as_bytes(tensor, kind)
        span = [place, place + len(part)]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": span}
        parts.append(part)
        place += len(part)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def as_bytes(tensor: Any, kind: str) -> bytes:
    if kind == "BF16":
        return (tensor.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return tensor.astype(TYPES[kind]).tobytes()


def write_checkpoint(
    folder: Path,
    config: LlamaConfig,
    weights: Mapping[str, Any],
    *,
    kind: str = "F32",
    shards: int = 1,
) -> None:
    """Writes config.json and safetensors, in several files with an index where asked for."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(config)), encoding="utf-8")
    if shards == 1:
        write_safetensors(folder / "model.safetensors", weights, kind)
        return
    weight_map: dict[str, str] = {}
    for number in range(shards):
        shard = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        names = list(weights)[number::shards]
        write_safetensors(folder / shard, {name: weights[name] for name in names}, kind)
        weight_map |= dict.fromkeys(names, shard)
    write_index(folder, weight_map)


def write_index(folder: Path, weight_map: Mapping[str, Any]) -> None:
    index = {"metadata": {}, "weight_map": dict(weight_map)}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index), encoding="utf-8")


def chi_square(counts: Iterable[int], shares: Iterable[float]) -> float:
    """Pearson's statistic of counts against the shares that were expected."""
    counts, shares = np.asarray(list(counts)), np.asarray(list(shares))
    expected = counts.sum() * shares / shares.sum()
    return float(((counts - expected) ** 2 / expected).sum())


LLAMA3 = Rope(
    "llama3", 10_000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position=32,
)  # fmt: skip
# Everything that a configuration can say.
VARIANTS = {
    "grouped": tiny(),
    "tied": tiny(tie_word_embeddings=True),
    "biases": tiny(attention_bias=True, mlp_bias=True),
    "one key head": tiny(num_kv_heads=1),
    "as many key heads": tiny(num_kv_heads=4),
    "linear": tiny(rope=Rope("linear", factor=4.0)),
    "llama3": tiny(rope=LLAMA3),
    "wide heads": tiny(head_dim=10),
}
