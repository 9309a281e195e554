"""Settings that go together, by name."""

from __future__ import annotations

from octavo.errors import ConfigError

__all__ = ["PRESETS", "preset"]

# A 7B model in bf16 on 2 TB/s: its 14 GB are read in 7 ms, and a prompt of 500 tokens takes 48 ms.
# KV per token: 2 x 32 layers x 32 heads x 128 x 2 bytes.
_LESSON = {
    "weight_bytes": 14e9,
    "kv_bytes_per_token": 524_288.0,
    "bandwidth": 2e12,
    "flop_per_token": 14e9,
    "peak_flops": 150e12,
    "overhead": 0.001,
}

PRESETS: dict[str, dict[str, float]] = {"lesson": _LESSON}


def preset(name: str) -> dict[str, float]:
    """The settings of a preset.

    Raises:
        ConfigError: There is no such preset.
    """
    if name not in PRESETS:
        raise ConfigError("preset", name, f"one of {', '.join(sorted(PRESETS))}")
    return dict(PRESETS[name])
