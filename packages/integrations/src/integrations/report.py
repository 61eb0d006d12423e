"""``Report``: where the bytes of one forward's saved tensors went."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from integrations.saved.records import RECOMPUTED, Record
from integrations.unused import IT_TAKES

NOTHING_LEFT = "offload moves tensors of CUDA devices, and none of those that autograd alone keeps is large and on one"


@dataclass(frozen=True)
class Row:
    """One saved tensor.

    Attributes:
        module: path of the module that saved it; empty for the model itself.
        operator: the call that saved it.
        role: what it was to the call: ``"input"``, ``"other"``, ``"result"`` or ``"internal"``; ``"compiled"`` where a
            region of ``torch.compile`` saved it, and the operators are those that use it in backward.
        shape, dtype: of the tensor.
        codec: how it is stored; ``"kept"`` as it is, ``"copied"`` exactly, so that a larger storage can go, or
            ``"recomputed"``: nothing is stored.
        original_bytes: what plain autograd keeps alive for it: its whole storage, in the first row that saves it.
        stored_bytes: what is kept instead; 0 where it shares what an earlier row counts.
        why: the reason for the codec.
        owner: who keeps the tensor alive anyway (a parameter, a buffer, an input); its bytes count nothing.
        host: whether what is kept was taken to host memory.
    """

    module: str
    operator: str
    role: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    codec: str
    original_bytes: int
    stored_bytes: int
    why: str
    owner: str
    host: bool = False

    @classmethod
    def of(cls, record: Record) -> Row:
        saved = record.saved
        return cls(
            saved.module,
            saved.operator,
            saved.role,
            tuple(saved.shape),
            saved.dtype,
            record.codec,
            record.original_bytes,
            record.stored_bytes,
            record.why,
            record.owner,
            record.host,
        )


@dataclass(frozen=True)
class Report:
    """What the last compressed forward saved. ``str(report)`` is a table.

    Attributes:
        level: name of the level, and what was changed of it: ``"L1 with bits=6"``.
        rows: one per saved tensor, in the order of saving.
        off: whether the level compresses nothing.
        offload: whether the level takes what is stored to host memory.
        plan: where the bits of an adaptive level come from, in words; empty at other levels.
        monitor: what the monitor found, in words; empty without one.
        recomputed: by which plan backward makes tensors again, in words; empty without one.
    """

    level: str
    rows: Sequence[Row]
    off: bool = False
    offload: bool = False
    plan: str = ""
    monitor: str = ""
    recomputed: str = ""

    @property
    def original_bytes(self) -> int:
        """Bytes that autograd alone would keep alive: not parameters, buffers or the caller's inputs."""
        return sum(row.original_bytes for row in self.rows)

    @property
    def stored_bytes(self) -> int:
        """Bytes that are kept instead, on the host or not."""
        return sum(row.stored_bytes for row in self.rows)

    @property
    def host_bytes(self) -> int:
        """Those of ``stored_bytes`` that were taken to host memory: no device holds them."""
        return sum(row.stored_bytes for row in self.rows if row.host)

    @property
    def recomputed_bytes(self) -> int:
        """Those of ``original_bytes`` of which nothing is stored, because backward makes the tensors again."""
        return sum(row.original_bytes for row in self.rows if row.codec == RECOMPUTED)

    @property
    def ratio(self) -> float:
        """``original_bytes / stored_bytes``; 1 where nothing was saved."""
        return self.original_bytes / self.stored_bytes if self.stored_bytes else 1.0

    def table(self) -> Table:
        """The report as a rich table: what autograd alone keeps, one line a tensor."""
        table = Table(title=self._title(), caption=self._caption(), caption_justify="left")
        for heading in ("module", "operator", "shape", "dtype", "codec"):
            table.add_column(heading, overflow="fold")
        table.add_column("before", justify="right")
        table.add_column("after", justify="right")
        table.add_column("why", overflow="fold")
        for row in self.rows:
            if not row.owner:
                table.add_row(
                    Text(row.module or "(model)"),  # a name may have brackets, which are markup in a string
                    f"{row.operator or 'unknown'} {row.role}",
                    "x".join(map(str, row.shape)) or "scalar",
                    str(row.dtype).removeprefix("torch."),
                    row.codec,
                    format_bytes(row.original_bytes) if row.original_bytes else "shared",
                    _after(row),
                    row.why,
                )
        return table

    def _title(self) -> str:
        before, after = format_bytes(self.original_bytes), format_bytes(self.stored_bytes)
        return f"Saved tensors at {self.level}: {before} -> {after} ({self.ratio:.1f}x)"

    def _caption(self) -> str:
        if self.off:
            return f"Level {self.level} is off: nothing is compressed."
        if not self.rows:
            return f"No forward has been compressed yet: {IT_TAKES}."
        owners: dict[str, int] = {}
        for row in self.rows:
            if row.owner:
                owners[row.owner] = owners.get(row.owner, 0) + 1
        listed = ", ".join(f"{count} x {owner}" for owner, count in sorted(owners.items()))
        lines = [line for line in (self.plan, self.monitor) if line]
        if self.recomputed:
            lines.append(f"{self.recomputed}: of {format_bytes(self.recomputed_bytes)} nothing is stored.")
        if listed:
            lines.append(f"Left alone, because somebody else keeps them alive: {listed}.")
        if self.offload:
            lines.append(self._where())
        return "\n".join(lines)

    def _where(self) -> str:
        if self.host_bytes:
            here = format_bytes(self.stored_bytes - self.host_bytes)
            return f"Taken to host memory: {format_bytes(self.host_bytes)}; left where it was: {here}."
        return f"Nothing was taken to host memory: {NOTHING_LEFT}."

    def __str__(self) -> str:
        text = StringIO()
        # As wide as the terminal, and wide enough for its columns where there is none, as in a log file.
        Console(file=text, width=shutil.get_terminal_size((160, 50)).columns).print(self.table())
        return text.getvalue().rstrip()


def _after(row: Row) -> str:
    if row.codec == RECOMPUTED:
        return "-"
    return format_bytes(row.stored_bytes) if row.stored_bytes else "shared"


def format_bytes(count: float) -> str:
    """A number of bytes in the unit that suits it: ``1536`` is ``"1.5 KiB"``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
