"""Plans filled up to a fixed number of rows, as captured graphs take them."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, NamedTuple

from octavo.errors import RequestError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from octavo._core import StepPlan

__all__ = ["PaddedPlan", "pad"]

_MAX_ROWS = 65_536


class PaddedPlan(NamedTuple):
    """The arrays of a plan that a forward pass reads, for `size` rows.

    Attributes:
        rows: int32[size], 0 for padding.
        num_tokens: int32[size], 1 for padding.
        query_start: int32[size + 1].
        token_ids: int32[T + padding], 0 for padding.
        positions: int32[T + padding], 0 for padding.
        slot_mapping: int64[T + padding], -1 for padding: its KV goes nowhere.
        seq_lens: int32[size], 0 for padding: it attends to nothing.
    """

    rows: npt.NDArray[np.int32]
    num_tokens: npt.NDArray[np.int32]
    query_start: npt.NDArray[np.int32]
    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slot_mapping: npt.NDArray[np.int64]
    seq_lens: npt.NDArray[np.int32]


def pad(plan: StepPlan, size: int) -> PaddedPlan:
    """The arrays of `plan`, copied and filled up to `size` rows.

    A padding row computes one token of its own, behind those of the plan: a plan of N decodes has
    `size` rows and `size` tokens. `sample` and what else the plan says stay as they are.

    Args:
        plan: A plan that is out, or one that was read from a buffer.
        size: Rows, at least those of the plan.

    Raises:
        RequestError: `size` is smaller than the plan, or beyond 65,536 rows.
        TypeError: `size` is no integer.
        StateError: The plan was committed or cancelled.

    Example:
        >>> import octavo
        >>> scheduler = octavo.Scheduler(num_blocks=8)
        >>> _ = scheduler.add([1, 2, 3], max_tokens=2)
        >>> padded = octavo.pad(scheduler.step(0.0), 2)
        >>> padded.slot_mapping.tolist(), padded.seq_lens.tolist()
        ([0, 1, 2, -1], [3, 0])
    """
    import numpy as np  # noqa: PLC0415 - a simulation never needs it, and it is slow to start

    size, rows = index(size), plan.rows
    if size > _MAX_ROWS:
        message = f"{size} rows are more than any scheduler has"
        raise RequestError("size", message, limit=_MAX_ROWS, excess=size - _MAX_ROWS)
    missing = size - len(rows)
    if missing < 0:
        message = f"{size} rows are fewer than the {len(rows)} of the plan"
        raise RequestError("size", message, limit=float(len(rows)), excess=float(-missing))

    def filled(values: npt.NDArray[np.int32], filler: int) -> npt.NDArray[np.int32]:
        return np.concatenate([values, np.full(missing, filler, dtype=np.int32)])

    last = plan.query_start[-1]
    more = np.arange(last + 1, last + 1 + missing, dtype=np.int32)
    nowhere = np.full(missing, -1, dtype=np.int64)
    return PaddedPlan(
        rows=filled(rows, 0),
        num_tokens=filled(plan.num_tokens, 1),
        query_start=np.concatenate([plan.query_start, more]),
        token_ids=filled(plan.token_ids, 0),
        positions=filled(plan.positions, 0),
        slot_mapping=np.concatenate([plan.slot_mapping, nowhere]),
        seq_lens=filled(plan.seq_lens, 0),
    )
