"""The shape of a Llama: what `config.json` says of it, checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from octavo.errors import CheckpointError, ConfigError
from octavo.model.rope import Rope

__all__ = ["ARCHITECTURES", "LlamaConfig", "read_config", "read_json"]

ARCHITECTURES = ("LlamaForCausalLM",)

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
}
_ROPE_FIELDS = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_position",
}


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a Llama.

    Attributes:
        vocab_size: Rows of the embedding.
        hidden_size: Width of the residual stream.
        intermediate_size: Width inside the feed-forward part.
        num_layers: Layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads; divides `num_heads`.
        head_dim: Width of a head, even.
        max_position_embeddings: The longest sequence that it was made for.
        rms_norm_eps: What keeps the norm away from a division by zero.
        rope: How positions are rotated in.
        tie_word_embeddings: Whether the output layer is the embedding.
        attention_bias: Whether the four projections of attention add a bias.
        mlp_bias: Whether the three of the feed-forward part do.
        eos_token_ids: Tokens that end a text.

    Raises:
        ConfigError: A size below 1, heads that do not divide, an odd head.

    Example:
        >>> config = LlamaConfig(
        ...     vocab_size=100,
        ...     hidden_size=32,
        ...     intermediate_size=64,
        ...     num_layers=2,
        ...     num_heads=4,
        ...     num_kv_heads=2,
        ...     head_dim=8,
        ... )
        >>> config.num_parameters
        24992
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int = 2_048
    rms_norm_eps: float = 1e-6
    rope: Rope = field(default_factory=Rope)
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = (*_SIZES.values(), "num_kv_heads", "head_dim", "max_position_embeddings")
        for name in sizes:
            if not _is_count(getattr(self, name)):
                raise ConfigError(name, getattr(self, name), "a whole number, at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError("num_kv_heads", self.num_kv_heads, f"divides {self.num_heads} heads")
        if self.head_dim % 2:
            raise ConfigError("head_dim", self.head_dim, "even, since halves are rotated")
        if not (math.isfinite(self.rms_norm_eps) and self.rms_norm_eps >= 0):
            raise ConfigError("rms_norm_eps", self.rms_norm_eps, "a finite number, at least 0")

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The tensors of such a model by their names in a checkpoint, with their shapes."""
        hidden, inner, vocab = self.hidden_size, self.intermediate_size, self.vocab_size
        query, key = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = {
            "q_proj": (query, hidden),
            "k_proj": (key, hidden),
            "v_proj": (key, hidden),
            "o_proj": (hidden, query),
        }
        mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden)}
        mlp["down_proj"] = (hidden, inner)
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
        for layer in range(self.num_layers):
            at = f"model.layers.{layer}."
            shapes[f"{at}input_layernorm.weight"] = (hidden,)
            shapes |= _linears(f"{at}self_attn.", attention, bias=self.attention_bias)
            shapes[f"{at}post_attention_layernorm.weight"] = (hidden,)
            shapes |= _linears(f"{at}mlp.", mlp, bias=self.mlp_bias)
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (vocab, hidden)
        return shapes

    @property
    def num_parameters(self) -> int:
        """How many numbers a model of this shape has."""
        return sum(math.prod(shape) for shape in self.tensors().values())

    @staticmethod
    def small() -> LlamaConfig:
        """A model of 32 million parameters: large enough that reading them binds one text."""
        return LlamaConfig(
            vocab_size=8_192,
            hidden_size=512,
            intermediate_size=1_408,
            num_layers=8,
            num_heads=8,
            num_kv_heads=4,
            head_dim=64,
        )

    @staticmethod
    def from_dict(values: Mapping[str, Any], file: str = "config.json") -> LlamaConfig:
        """Reads what a `config.json` holds.

        What is left out has the value that Hugging Face gives it.

        Args:
            values: The contents.
            file: The file's name, for errors.

        Raises:
            CheckpointError: An unknown architecture, a missing or impossible size, or something
                that this model does not do, by name.
        """
        _refuse_others(values, file)
        sizes = {name: _count(values, key, file) for key, name in _SIZES.items()}
        heads = sizes["num_heads"]
        kv_heads = _optional_count(values, "num_key_value_heads", file, heads)
        head_dim = _optional_count(values, "head_dim", file, sizes["hidden_size"] // heads)
        longest = _optional_count(values, "max_position_embeddings", file, 2_048)
        try:
            return LlamaConfig(
                **sizes,
                num_kv_heads=kv_heads,
                head_dim=head_dim,
                max_position_embeddings=longest,
                rms_norm_eps=_number(values, "rms_norm_eps", file, 1e-6),
                rope=_rope(values, file),
                tie_word_embeddings=_flag(values, "tie_word_embeddings", file),
                attention_bias=_flag(values, "attention_bias", file),
                mlp_bias=_flag(values, "mlp_bias", file),
                eos_token_ids=_eos(values, file),
            )
        except ConfigError as error:
            raise CheckpointError(file, str(error)) from error


def read_config(folder: str | Path) -> LlamaConfig:
    """Reads `config.json` of a folder, and the end tokens of its `generation_config.json`.

    Raises:
        CheckpointError: A file is not there or no JSON, or `LlamaConfig.from_dict` refuses it.
    """
    path = Path(folder) / "config.json"
    values = read_json(path)
    generation = path.with_name("generation_config.json")
    if generation.exists():
        eos = read_json(generation).get("eos_token_id")
        if eos is not None:
            values["eos_token_id"] = eos
    return LlamaConfig.from_dict(values, str(path))


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Raises:
        CheckpointError: The file is not there, or holds something else.
    """
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(str(path), "is not there") from None
    except (ValueError, OSError) as error:
        raise CheckpointError(str(path), f"is no readable JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(str(path), "holds no JSON object")
    return cast("dict[str, Any]", values)


def _linears(at: str, shapes: dict[str, tuple[int, int]], *, bias: bool) -> dict[str, Any]:
    tensors: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        tensors[f"{at}{name}.weight"] = shape
        if bias:
            tensors[f"{at}{name}.bias"] = shape[:1]
    return tensors


def _refuse_others(values: Mapping[str, Any], file: str) -> None:
    architectures: Any = values.get("architectures")
    if architectures is None and values.get("model_type") == "llama":
        architectures = list(ARCHITECTURES)
    if not isinstance(architectures, list) or not architectures:
        raise CheckpointError(file, "names no architecture")
    name = cast("Sequence[Any]", architectures)[0]
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise CheckpointError(file, f"architecture {name} is not known: there is {known}")
    if values.get("hidden_act", "silu") != "silu":
        raise CheckpointError(file, f"hidden_act = {values['hidden_act']!r}: only silu is done")
    if values.get("quantization_config") is not None:
        raise CheckpointError(file, "quantization_config: quantised weights are not read")
    if values.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(file, "partial_rotary_factor: only whole heads are rotated")


def _rope(values: Mapping[str, Any], file: str) -> Rope:
    # Newer files say all of it in rope_parameters, older ones the base beside rope_scaling.
    given: Any = values.get("rope_parameters")
    if given is None:
        given = values.get("rope_scaling")
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise CheckpointError(file, f"rope_scaling = {given!r} is no JSON object")
    said = cast("dict[str, Any]", given)
    theta = said.get("rope_theta", values.get("rope_theta", 10_000.0))
    kind = said.get("rope_type", said.get("type", "default"))
    settings = {name: said[key] for key, name in _ROPE_FIELDS.items() if key in said}
    try:
        return Rope(kind=kind, theta=theta, **settings)
    except ConfigError as error:
        raise CheckpointError(file, str(error)) from error


def _eos(values: Mapping[str, Any], file: str) -> tuple[int, ...]:
    given: Any = values.get("eos_token_id")
    tokens = cast("Sequence[Any]", given) if isinstance(given, list) else (given,)
    tokens = [token for token in tokens if token is not None]
    if not all(isinstance(token, int) and token >= 0 for token in tokens):
        raise CheckpointError(file, f"eos_token_id = {given!r} is no token")
    return tuple(tokens)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _count(values: Mapping[str, Any], key: str, file: str) -> int:
    if key not in values:
        raise CheckpointError(file, f"{key} is missing")
    if not _is_count(values[key]):
        raise CheckpointError(file, f"{key} = {values[key]!r} is no whole number above 0")
    count: int = values[key]
    return count


def _optional_count(values: Mapping[str, Any], key: str, file: str, default: int) -> int:
    return default if values.get(key) is None else _count(values, key, file)


def _number(values: Mapping[str, Any], key: str, file: str, default: float) -> float:
    value = values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckpointError(file, f"{key} = {value!r} is no number")
    return float(value)


def _flag(values: Mapping[str, Any], key: str, file: str) -> bool:
    value = values.get(key, False)
    if not isinstance(value, bool):
        raise CheckpointError(file, f"{key} = {value!r} is neither true nor false")
    return value
