"""``Report``: where the bytes of one forward's saved tensors went."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from os import PathLike

from rich.console import Console
from rich.table import Table

from integrations.report import page, plot, serial
from integrations.report.row import Row
from integrations.report.table import full_table, module_table
from integrations.report.timeline import Moment, timeline_of
from integrations.report.words import format_bytes
from integrations.saved.records import RECOMPUTED
from integrations.unused import IT_TAKES

NOTHING_LEFT = "offload moves tensors of CUDA devices, and none of those that autograd alone keeps is large and on one"


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
        model: the model's class, for titles.
        note: how the report came about, where no step of a training made it; empty otherwise.
        exchanged: what layers were exchanged for others that keep less, in words; empty without.
        loss: whose loss was counted, in words; empty where none is known.
        gradient_bytes: of the gradient that its backward makes of what the model returns; 0 where none is known.
    """

    level: str
    rows: Sequence[Row]
    off: bool = False
    offload: bool = False
    plan: str = ""
    monitor: str = ""
    recomputed: str = ""
    model: str = ""
    note: str = ""
    exchanged: str = ""
    loss: str = ""
    gradient_bytes: int = 0

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

    @property
    def title(self) -> str:
        """The level, and what it saves, in a line."""
        before, after = format_bytes(self.original_bytes), format_bytes(self.stored_bytes)
        return f"Saved tensors at {self.level}: {before} -> {after} ({self.ratio:.1f}x)"

    @property
    def caption(self) -> str:
        """What else there is to say, in lines."""
        if self.off and not self.exchanged:
            return f"Level {self.level} is off: nothing is compressed."
        if not self.rows:
            return f"No forward has been compressed yet: {IT_TAKES}."
        owners: dict[str, int] = {}
        for row in self.rows:
            if row.owner:
                owners[row.owner] = owners.get(row.owner, 0) + 1
        listed = ", ".join(f"{count} x {owner}" for owner, count in sorted(owners.items()))
        lines = [line for line in (self.note, self.exchanged, self.plan, self.monitor) if line]
        if self.loss:
            lines.append(self._after_loss())
        if self.recomputed:
            stored = f": of {format_bytes(self.recomputed_bytes)} nothing is stored" if self.recomputed_bytes else ""
            lines.append(f"{self.recomputed}{stored}.")
        if listed:
            lines.append(f"Left alone, because somebody else keeps them alive: {listed}.")
        if self.offload:
            lines.append(self._where())
        return "\n".join(lines)

    def table(self, depth: int | None = None) -> Table:
        """The report as a rich table: what autograd alone keeps, by module, one line a tensor.

        Args:
            depth: lists modules down to this depth instead of tensors, 1 for the model's own parts.

        Raises:
            TypeError: ``depth`` is not an int.
            ValueError: ``depth`` is negative.
        """
        if depth is None:
            return full_table(self)
        if isinstance(depth, bool) or not isinstance(depth, int):
            raise TypeError(f"depth must be an int, got {depth!r}")
        if depth < 0:
            raise ValueError(f"depth must be 0 or more, got {depth}; 1 lists the model's own parts")
        return module_table(self, depth)

    def timeline(self) -> tuple[Moment, ...]:
        """What is stored at each moment of a step: it grows as forward saves tensors, and shrinks as backward, which
        takes them in reverse, lets them go. Saved tensors alone: not what operators hold for a moment, and no
        gradients but ``gradient_bytes``, which stand beside all that is saved."""
        return timeline_of(self.rows, self.gradient_bytes)

    def to_json(self) -> str:
        """All of the report as JSON, for ``Report.from_json`` and for other programs; sums are in it, too."""
        return serial.to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report of which ``to_json`` made the text.

        Raises:
            ValueError: the text is no JSON, or not that of a report.
        """
        try:
            return cls(**serial.from_json(text))
        except TypeError as error:
            raise ValueError(f"text must be what to_json returned, and no more or less: {error}") from error

    def plot(self, path: str | PathLike[str]) -> None:
        """Draws memory over one step, without compression and with it, and by module.

        Args:
            path: the file to write; its ending names the type: ``.png``, ``.svg``, ``.pdf``.

        Raises:
            ImportError: matplotlib is not there.
            ValueError: nothing was saved, or the ending is of no type that matplotlib writes.
            OSError: the file cannot be written.
        """
        plot.plot_report(self, path)

    def html(self, path: str | PathLike[str]) -> None:
        """Writes a page that needs nothing but a browser: sums, the same two charts, every tensor in a tree.

        Args:
            path: the file to write, in UTF-8.

        Raises:
            OSError: the file cannot be written.
        """
        page.write_page(self, path)

    def _after_loss(self) -> str:
        if not self.gradient_bytes:
            return f"{self.loss}."
        sums = self.original_bytes, self.stored_bytes
        before, after = (format_bytes(count + self.gradient_bytes) for count in sums)
        return (
            f"{self.loss}. Its backward begins with the gradient of what the model returns, "
            f"{format_bytes(self.gradient_bytes)}, beside all that is kept: {before} -> {after} at that moment."
        )

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
