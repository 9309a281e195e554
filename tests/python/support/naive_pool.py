"""The blocks of the naive twin: who holds which, what is cached, what must wait, what is copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.errors import StateError

if TYPE_CHECKING:
    from support.naive_identity import History, Identity


@dataclass(eq=False)
class Block:
    """One block. `tables`, `copies` and `pins` count who holds it; nobody does when all are 0."""

    tables: int = 0
    copies: int = 0
    pins: int = 0
    history: History | None = None  # set while the block is findable
    guard: int | None = None  # cached, but not to be evicted before this step ends
    fence: int | None = None  # freed, but not to be given out before this step ends

    @property
    def count(self) -> int:
        return self.tables + self.copies + self.pins


@dataclass(eq=False)
class Copy:
    source: int
    target: int
    num_tokens: int
    step: int | None
    taken: bool = False


class NaivePool:
    """Lists and linear scans; every rule in the order in which the specification tells it."""

    def __init__(self, num_blocks: int, block_size: int, *, first: int = 0) -> None:
        self.num_blocks = num_blocks
        self.first = first  # the lowest block that is given out
        self.block_size = block_size
        self.blocks: dict[int, Block] = {}
        self.stack: list[int] = []  # blank blocks that were used before
        self.recency: list[int] = []  # cached blocks, the next to be evicted first
        self.fenced: list[int] = []
        self.pending: list[Copy] = []  # copies that hold their source, in the order made
        self.open_steps: list[int] = []
        self.last_step = 0
        self.published_blocks = 0
        self.merged_blocks = 0
        self.evicted_blocks = 0
        self.copies_made = 0

    # --- what there is -----------------------------------------------------------------------

    def usable(self) -> int:
        return self.num_blocks - self.first

    def num_blank(self) -> int:
        return len(self.stack) + self.usable() - len(self.blocks)

    def evictable(self) -> list[int]:
        return [block for block in self.recency if self.blocks[block].guard is None]

    def available(self) -> int:
        return self.num_blank() + len(self.evictable())

    def coming(self) -> int:
        """Blocks that will be available once the open steps have ended."""
        return len(self.fenced) + len(self.recency) - len(self.evictable())

    def find(self, history: History) -> int | None:
        for number, block in self.blocks.items():
            if block.history == history:
                return number
        return None

    def longest_hit(self, identity: Identity, tokens: list[int], limit: int) -> list[int]:
        hit: list[int] = []
        while len(hit) < limit:
            found = self.find(identity.history(tokens, len(hit) + 1, self.block_size))
            if found is None:
                break
            hit.append(found)
        return hit

    def has_child(self, number: int) -> bool:
        history = self.blocks[number].history
        return history is not None and any(
            other.history is not None and other.history.parent(self.block_size) == history
            for other in self.blocks.values()
        )

    def newest_step(self) -> int | None:
        return self.open_steps[-1] if self.open_steps else None

    def untaken(self) -> list[Copy]:
        return [copy for copy in self.pending if not copy.taken]

    def untaken_copy_to(self, number: int) -> Copy | None:
        for copy in self.untaken():
            if copy.target == number:
                return copy
        return None

    def forget(self, numbers: list[int]) -> None:
        """Makes these blocks unfindable, and all that was published below them."""
        for number in numbers:
            history, self.blocks[number].history = self.blocks[number].history, None
            below = [
                child
                for child, block in self.blocks.items()
                if history is not None
                and block.history is not None
                and block.history.parent(self.block_size) == history
            ]
            assert not any(child in self.recency for child in below)
            self.forget(below)

    # --- giving out --------------------------------------------------------------------------

    def allocate(self, amount: int) -> list[int]:
        """Gives out `amount` blocks, each named by one table; the caller saw that they exist."""
        return [self._allocate_one() for _ in range(amount)]

    def _allocate_one(self) -> int:
        if self.stack:
            number = self.stack.pop()
        elif len(self.blocks) < self.usable():
            number = self.first + len(self.blocks)
        else:
            number = self.evictable()[0]
            self.recency.remove(number)
            self.evicted_blocks += 1
            self.blocks[number] = Block()
            self._drop_copy_to(number, evicted=True)
        self.blocks[number] = Block(tables=1)
        return number

    def claim(self, number: int) -> None:
        """One more table names this block."""
        self._wake(number)
        self.blocks[number].tables += 1

    def pin(self, number: int) -> None:
        self._wake(number)
        self.blocks[number].pins += 1

    def _wake(self, number: int) -> None:
        block = self.blocks[number]
        if block.count == 0:
            self.recency.remove(number)
            block.guard = None

    # --- taking back -------------------------------------------------------------------------

    def release(self, number: int) -> None:
        """One table less names this block."""
        self.blocks[number].tables -= 1
        self._let_go(number)

    def release_pin(self, numbers: list[int]) -> None:
        for number in reversed(numbers):
            self.blocks[number].pins -= 1
            self._let_go(number)

    def _release_source(self, number: int) -> None:
        self.blocks[number].copies -= 1
        self._let_go(number)
        if number in self.recency:
            # It became cached, perhaps after its ancestors did: they go behind it.
            self._renew_ancestors(number)

    def _renew_ancestors(self, number: int) -> None:
        for ancestor in self._cached_ancestors(number):
            self.recency.remove(ancestor)
            self.recency.append(ancestor)
            self.blocks[ancestor].guard = self.newest_step()

    def _cached_ancestors(self, number: int) -> list[int]:
        """The parent, its parent, and so on up to the first that somebody holds."""
        ancestors: list[int] = []
        history = self.blocks[number].history
        while history is not None:
            history = history.parent(self.block_size)
            ancestor = None if history is None else self.find(history)
            if ancestor is None or self.blocks[ancestor].count > 0:
                break
            ancestors.append(ancestor)
        return ancestors

    def _release_source_of_evicted(self, number: int) -> None:
        """Nothing that could be evicted before may have to wait after this."""
        ancestors = self._cached_ancestors(number)
        waits = not ancestors or self.blocks[ancestors[0]].guard is not None
        if waits or self.blocks[number].count > 1:
            self._release_source(number)
            return
        self.blocks[number].copies -= 1
        for moved in (number, *ancestors):
            if self.blocks[moved].guard is not None:
                break
            if moved in self.recency:
                self.recency.remove(moved)
            self.recency.insert(len(self.evictable()), moved)

    def _drop_copy_to(self, number: int, *, evicted: bool) -> None:
        """A copy that was not taken is dropped when its target's content is lost."""
        dropped = self.untaken_copy_to(number)
        if dropped is not None:
            self.pending.remove(dropped)
            release = self._release_source_of_evicted if evicted else self._release_source
            release(dropped.source)

    def _let_go(self, number: int) -> None:
        block = self.blocks[number]
        assert block.tables >= 0
        assert block.copies >= 0
        assert block.pins >= 0
        if block.count > 0:
            return
        if block.history is not None:
            self.recency.append(number)
            block.guard = self.newest_step()
            return
        if self.open_steps:
            self.fenced.append(number)
            block.fence = self.newest_step()
        else:
            self.stack.append(number)
        self._drop_copy_to(number, evicted=False)

    # --- publishing --------------------------------------------------------------------------

    def publish(self, number: int, history: History, *, dedupe: bool) -> int:
        """Makes a full block findable, or claims its equal, for `number` or beside it.

        Returns the block that is findable.
        """
        canonical = self.find(history)
        if canonical is None:
            self.blocks[number].history = history
            self.published_blocks += 1
            return number
        self.claim(canonical)
        if dedupe:
            self.release(number)
            self.merged_blocks += 1
        return canonical

    # --- copying -----------------------------------------------------------------------------

    def is_writable(self, number: int, offset: int) -> bool:
        """Whether one table may write at `offset` and later without anybody else noticing."""
        block = self.blocks[number]
        if block.history is not None:
            return block.count == 1 and not self.has_child(number)
        return (
            block.tables == 1
            and block.pins == 0
            and all(copy.num_tokens <= offset for copy in self.pending if copy.source == number)
        )

    def source_of_copy(self, number: int, num_tokens: int) -> int:
        """Where a copy of this block is to read: chains lead to their first source."""
        earlier = self.untaken_copy_to(number)
        if earlier is None:
            return number
        if earlier.num_tokens < num_tokens:
            raise StateError("take_ops first: the block to copy is itself still to be copied")
        return earlier.source

    def copy(self, number: int, num_tokens: int) -> int:
        """Gives a table its own copy of `number`. Returns the copy's block."""
        source = self.source_of_copy(number, num_tokens)
        target = self._allocate_one()
        self.pending.append(Copy(source, target, num_tokens, self.newest_step()))
        self.blocks[source].copies += 1
        self.copies_made += 1
        self.release(number)
        return target

    def take_copies(self) -> list[Copy]:
        taken = self.untaken()
        for copy in taken:
            copy.taken = True
            if copy.step not in self.open_steps:
                copy.step = self.newest_step()
            if copy.step is not None:
                self._renew_ancestors(copy.source)
        self._end_copies([copy for copy in taken if copy.step is None])
        return taken

    def hand_out_copies(self, step: int) -> list[Copy]:
        """Takes all copies that were made, for this step."""
        for copy in self.untaken():
            copy.step = step
        return self.take_copies()

    def _end_copies(self, ended: list[Copy]) -> None:
        self.pending = [copy for copy in self.pending if copy not in ended]
        for copy in ended:
            self._release_source(copy.source)

    # --- steps -------------------------------------------------------------------------------

    def begin_step(self) -> int:
        self.last_step += 1
        self.open_steps.append(self.last_step)
        return self.last_step

    def end_step(self, step: int) -> None:
        if not self.open_steps or self.open_steps[0] != step:
            raise StateError(f"step {step} is not the oldest open step")
        self.open_steps.pop(0)
        for number in list(self.fenced):
            if self.blocks[number].fence == step:
                self.fenced.remove(number)
                self.blocks[number].fence = None
                self.stack.append(number)
        for number in self.recency:
            if self.blocks[number].guard == step:
                self.blocks[number].guard = None
        self._end_copies([copy for copy in self.pending if copy.taken and copy.step == step])

    def void_steps(self, steps: list[int]) -> None:
        """Ends the newest steps, which failed: what waits for them waits for those before."""
        self.open_steps = [step for step in self.open_steps if step not in steps]
        newest = self.newest_step()
        for number in list(self.fenced):
            if self.blocks[number].fence in steps:
                self.blocks[number].fence = newest
                if newest is None:
                    self.fenced.remove(number)
                    self.stack.append(number)
        for number in self.recency:
            if self.blocks[number].guard in steps:
                self.blocks[number].guard = newest
        self._end_copies([copy for copy in self.pending if copy.taken and copy.step in steps])

    def new_epoch(self) -> None:
        """Nothing is findable any more; what is cached is blank, or fenced if it was guarded."""
        for block in self.blocks.values():
            block.history = None
        cached, self.recency = self.recency, []
        for number in cached:
            block = self.blocks[number]
            if block.guard is None:
                self.stack.append(number)
            else:
                block.guard, block.fence = None, self.newest_step()
                self.fenced.append(number)
        for number in cached:
            self._drop_copy_to(number, evicted=False)

    def clear(self) -> bool:
        if self.open_steps or any(
            block.count > 0 or block.guard is not None or block.fence is not None
            for block in self.blocks.values()
        ):
            return False
        for number in self.recency:
            self.blocks[number].history = None
            self.stack.append(number)
        self.recency = []
        return True
