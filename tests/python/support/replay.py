"""What a worker knows: block tables rebuilt from nothing but the table changes of plans (L8)."""

from __future__ import annotations

from typing import Any

from support.views import as_list


class TableMirror:
    def __init__(self) -> None:
        self.tables: dict[int, dict[int, int]] = {}

    def apply(self, plan: Any) -> None:
        changes = as_list(plan.table_changes)
        places = [tuple(change[:3]) for change in changes]
        assert len(set(places)) == len(places), "each (group, row, index) once per plan"
        for group, row, index, block in changes:
            assert group == 0
            self.tables.setdefault(row, {})[index] = block

    def row(self, row: int, length: int) -> list[int]:
        """The first `length` blocks of a row; fails where a worker was never told one."""
        known = self.tables.get(row, {})
        return [known[index] for index in range(length)]
