"""The shape of KV memory as a value: layers, blocks, heads, dtype, layout, and exact bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from octavo.attention.arrays import whole_number
from octavo.attention.dtypes import DTYPES, FP8
from octavo.errors import ConfigError

__all__ = ["LAYOUTS", "KVSpec"]

LAYOUTS = ("NHD", "HND")
_MAX = 2**31 - 1
_NO_MLA = "a single latent plane (MLA) is not supported yet"
# A scale is a float32 on its way to a kernel: neither zero nor subnormal nor infinite there.
_LEAST_SCALE, _LARGEST_SCALE = 2.0**-126, 2.0**127


@dataclass(frozen=True)
class KVSpec:
    """The shape of KV memory.

    Attributes:
        num_layers: Layers that have keys and values of their own, at least 1.
        num_blocks: Blocks of each layer, 1 … 2^31-1.
        block_size: Token slots in a block, 1 … 256.
        num_kv_heads: Heads of keys and values, at least 1.
        head_dim: Elements of a key, any even number.
        v_head_dim: Elements of a value, any even number; as many as of a key by default.
        dtype: "float64", "float32", "float16", "bfloat16" or "float8_e4m3".
        layout: "NHD" for [block, slot, head, dim], "HND" for [block, head, slot, dim].
        k_scale: What a stored key is multiplied by to get its value back: a float, or one for each
            KV head. float8_e4m3 needs it, nothing else has it.
        v_scale: The same for values.

    Raises:
        ConfigError: A field is outside its range; the error names it.

    Example:
        >>> spec = KVSpec(
        ...     num_layers=32, num_blocks=1000, block_size=16, num_kv_heads=8, head_dim=128
        ... )
        >>> spec.bytes_per_block, spec.k_shape
        (4194304, (1000, 16, 8, 128))
    """

    num_layers: int
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int | None = None
    dtype: str = "float32"
    layout: str = "NHD"
    k_scale: float | Sequence[float] | None = None
    v_scale: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        self._keep("layout", _one_of("layout", self.layout, LAYOUTS))
        self._keep("dtype", _one_of("dtype", self.dtype, tuple(DTYPES)))
        self._keep("num_layers", _whole("num_layers", self.num_layers))
        self._keep("num_blocks", _whole("num_blocks", self.num_blocks))
        self._keep("block_size", _whole("block_size", self.block_size, 256))
        self._keep("num_kv_heads", _whole("num_kv_heads", self.num_kv_heads))
        self._keep("head_dim", _even("head_dim", self.head_dim))
        values = self.head_dim if self.v_head_dim is None else self.v_head_dim
        if values == 0:
            raise ConfigError("v_head_dim", values, f"an even number ≥ 2: {_NO_MLA}")
        self._keep("v_head_dim", _even("v_head_dim", values))
        for field in ("k_scale", "v_scale"):
            self._keep(field, self._scale(field))
        if self.nbytes >= 2**63:
            most = (2**63 - 1) // self.bytes_per_block
            raise ConfigError("num_blocks", self.num_blocks, f"{most} at most: 2^63-1 bytes in all")

    def _keep(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _scale(self, field: str) -> float | tuple[float, ...] | None:
        given: object = getattr(self, field)
        if self.dtype != FP8:
            if given is not None:
                raise ConfigError(field, given, f"None: only {FP8} has scales")
            return None
        allowed = f"a scale of {FP8} > 0 in float32's range, or {self.num_kv_heads}, one a KV head"
        try:
            scales = [float(scale) for scale in cast("Any", given)]
            single = False
        except TypeError:
            scales, single = [_number(field, given, allowed)], True
        except ValueError as error:
            raise ConfigError(field, given, allowed) from error
        if not all(_LEAST_SCALE <= scale <= _LARGEST_SCALE for scale in scales):
            raise ConfigError(field, given, allowed)
        if not single and len(scales) != self.num_kv_heads:
            raise ConfigError(field, given, allowed)
        return scales[0] if single else tuple(scales)

    @classmethod
    def for_budget(
        cls,
        memory_bytes: float,
        *,
        num_layers: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        v_head_dim: int | None = None,
        dtype: str = "float32",
        layout: str = "NHD",
        k_scale: float | Sequence[float] | None = None,
        v_scale: float | Sequence[float] | None = None,
    ) -> KVSpec:
        """The spec with the most blocks whose memory fits `memory_bytes`.

        Raises:
            ConfigError: Not one block fits, or another field is outside its range.

        Example:
            >>> spec = KVSpec.for_budget(
            ...     2**30, num_layers=32, block_size=16, num_kv_heads=8, head_dim=128
            ... )
            >>> spec.num_blocks, spec.nbytes
            (256, 1073741824)
        """
        one = cls(
            num_layers=num_layers,
            num_blocks=1,
            block_size=block_size,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            v_head_dim=v_head_dim,
            dtype=dtype,
            layout=layout,
            k_scale=k_scale,
            v_scale=v_scale,
        )
        least = one.bytes_per_block
        allowed = f"at least {least} bytes, one block"
        memory = _number("memory_bytes", memory_bytes, allowed)
        if not least <= memory < math.inf:
            raise ConfigError("memory_bytes", memory_bytes, allowed)
        return replace(one, num_blocks=min(int(memory_bytes) // least, _MAX))

    @classmethod
    def for_model(
        cls,
        config: Mapping[str, Any],
        memory_bytes: float,
        *,
        block_size: int = 16,
        dtype: str = "float32",
        layout: str = "NHD",
        k_scale: float | Sequence[float] | None = None,
        v_scale: float | Sequence[float] | None = None,
    ) -> KVSpec:
        """The same for a model, by the names of a Hugging Face config.json.

        Args:
            config: `num_hidden_layers`, `num_attention_heads`, `num_key_value_heads` where it has
                fewer of them, `head_dim` or `hidden_size`.
            memory_bytes: For keys and values of all layers together.
            block_size: Token slots in a block.
            dtype: As in the spec; a model's own dtype is not looked at.
            layout: As in the spec.
            k_scale: As in the spec.
            v_scale: As in the spec.

        Raises:
            ConfigError: An entry is missing or outside its range, the model keeps one latent plane
                (MLA), or not one block fits.

        Example:
            >>> model = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
            >>> KVSpec.for_model(model, 2**20).k_shape
            (64, 16, 4, 16)
        """
        if config.get("kv_lora_rank") is not None:
            raise ConfigError("kv_lora_rank", config["kv_lora_rank"], f"absent: {_NO_MLA}")
        heads = _whole("num_attention_heads", config.get("num_attention_heads"))
        kv_heads = config.get("num_key_value_heads")
        head_dim = config.get("head_dim")
        if head_dim is None:
            head_dim = _whole("hidden_size", config.get("hidden_size")) // heads
        return cls.for_budget(
            memory_bytes,
            num_layers=_whole("num_hidden_layers", config.get("num_hidden_layers")),
            block_size=block_size,
            num_kv_heads=_whole("num_key_value_heads", heads if kv_heads is None else kv_heads),
            head_dim=head_dim,
            dtype=dtype,
            layout=layout,
            k_scale=k_scale,
            v_scale=v_scale,
        )

    @property
    def v_dim(self) -> int:
        """Elements of a value: `v_head_dim`, with its default filled in."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def k_shape(self) -> tuple[int, int, int, int]:
        """The shape of a layer's keys, in the layout."""
        return self._shape(self.head_dim)

    @property
    def v_shape(self) -> tuple[int, int, int, int]:
        """The shape of a layer's values, in the layout."""
        return self._shape(self.v_dim)

    def _shape(self, dim: int) -> tuple[int, int, int, int]:
        if self.layout == "NHD":
            return self.num_blocks, self.block_size, self.num_kv_heads, dim
        return self.num_blocks, self.num_kv_heads, self.block_size, dim

    @property
    def num_slots(self) -> int:
        """Token slots of the pool."""
        return self.num_blocks * self.block_size

    @property
    def bytes_per_token(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        elements = self.num_kv_heads * (self.head_dim + self.v_dim)
        return self.num_layers * elements * DTYPES[self.dtype]

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block, keys and values of all layers, without padding."""
        return self.block_size * self.bytes_per_token

    @property
    def nbytes(self) -> int:
        """Bytes of the whole memory, exactly."""
        return self.num_blocks * self.bytes_per_block


def _whole(field: str, value: object, most: int = _MAX) -> int:
    allowed = f"a whole number, 1 … {most}"
    number = whole_number(value)
    if number is None or not 1 <= number <= most:
        raise ConfigError(field, value, allowed)
    return number


def _even(field: str, value: object) -> int:
    number = _whole(field, value)
    if number % 2:
        raise ConfigError(field, value, "an even number ≥ 2")
    return number


def _one_of(field: str, value: object, names: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in names:
        words = ", ".join(names)
        more = f"; {_NO_MLA}" if isinstance(value, str) and value.upper() == "MLA" else ""
        raise ConfigError(field, value, f"one of {words}{more}")
    return value


def _number(field: str, value: object, allowed: str) -> float:
    try:
        return float(cast("Any", value))
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(field, value, allowed) from error
