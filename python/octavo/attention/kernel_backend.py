"""The back end of kernels: the operations of the reference, planned here and run by a launcher.

The launcher is a GPU's (`octavo.attention.gpu`) or an emulator's. What an operation takes and gives
is said in `octavo.attention.reference`; here are the differences:

- arrays are of the launcher's module, and of float32, float16 or bfloat16; memory holds the same,
  or fp8;
- values on the device (lengths, block ids, slots) are trusted unless `debug` is set: to look at
  them is to wait for the device;
- arithmetic is in float32, on tensor cores from factors of 16 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from octavo.attention.attention_kernels import AttentionKernels
from octavo.attention.memory_kernels import MemoryKernels
from octavo.attention.table_kernels import TableKernels

if TYPE_CHECKING:
    from octavo.attention.launch import Launcher

__all__ = ["KernelBackend"]


class KernelBackend(AttentionKernels, MemoryKernels, TableKernels):
    """A `Backend` over kernels.

    One for each stream: its workspace is that of one operation at a time.

    Args:
        launcher: What runs the kernels.
        split_tokens: Tokens of each part of a decode's context, a multiple of 16, so that a row's
            result does not depend on the batch; by default as many parts as fill the device.
        decode_on: Where both kernels can decode (16-bit memory), which one does: "cores", "tensor",
            or "auto", by the number of query heads of a KV head.
        debug: Whether values on the device are checked as the reference does.

    Raises:
        ConfigError: A setting is outside its range.
    """

    def __init__(
        self,
        launcher: Launcher,
        *,
        split_tokens: int | None = None,
        decode_on: Literal["auto", "cores", "tensor"] = "auto",
        debug: bool = False,
    ) -> None:
        super().__init__(launcher, split_tokens=split_tokens, decode_on=decode_on, debug=debug)
