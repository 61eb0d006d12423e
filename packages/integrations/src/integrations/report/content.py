"""``Content``: the content of a report, from which tables, charts, JSON and pages are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from actcore import GroupAffine
from integrations.report.rank_summary import RankSummary
from integrations.report.row import Row
from integrations.report.words import ESTIMATED, IT_TAKES, NOTHING_LEFT, divide, format_bytes, format_change
from integrations.tracing.storage.records import RECOMPUTED

_REASONS = 3
"""The number of reasons in a caption for exact tensors of compiled regions."""

_ROUNDED = GroupAffine.__name__
"""A part of the names of codecs that round in compiled regions."""


@dataclass(frozen=True)
class Content:
    """What a compressed forward saved. ``Report`` describes its fields."""

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
    original_peak_bytes: int = 0
    peak_bytes: int = 0
    peak_source: str = ""
    peak_note: str = ""
    measured_peak_bytes: int = 0
    ranks: tuple[RankSummary, ...] = ()

    @property
    def original_bytes(self) -> int:
        """Bytes that autograd alone would keep alive, without parameters, buffers and the caller's inputs."""
        return sum(row.original_bytes for row in self.rows)

    @property
    def stored_bytes(self) -> int:
        """Bytes that are kept instead, on the host or not."""
        return sum(row.stored_bytes for row in self.rows)

    @property
    def host_bytes(self) -> int:
        """The part of ``stored_bytes`` that was moved to host memory."""
        return sum(row.stored_bytes for row in self.rows if row.host)

    @property
    def recomputed_bytes(self) -> int:
        """The part of ``original_bytes`` of which nothing is stored, because backward recomputes the tensors."""
        return sum(row.original_bytes for row in self.rows if row.codec == RECOMPUTED)

    @property
    def ratio(self) -> float:
        """``original_bytes / stored_bytes``; 1 if nothing was saved."""
        return divide(self.original_bytes, self.stored_bytes)

    @property
    def title(self) -> str:
        """The level, the bytes of saved tensors, and the step's peak, in one line."""
        saved = f"{self.level}: saved {format_change(self.original_bytes, self.stored_bytes)} ({self.ratio:.1f}x)"
        if self._is_exact_in_regions:
            regions = sum(row.stored_bytes for row in self.rows if row.role == "compiled")
            part = f", {format_bytes(regions)} of it" if regions < self.stored_bytes else ""
            saved = f"{self.level}: saved {format_bytes(self.stored_bytes)}{part} in compiled regions"
        if not self.rows:
            return saved
        if not self.peak_source:
            return f"{saved}; step peak not known"
        return f"{saved}; step peak {format_change(self.original_peak_bytes, self.peak_bytes)}, {self.peak_words}"

    @property
    def peak_words(self) -> str:
        """Where the peaks come from, in words, with the measured one beside the planned one."""
        measured = f"; {format_bytes(self.measured_peak_bytes)} measured" if self.measured_peak_bytes else ""
        return f"{self.peak_source}{self.peak_note}{measured}"

    @property
    def caption(self) -> str:
        """Further lines of text."""
        if self.off and not self.exchanged:
            return f"Level {self.level} is off: nothing is compressed."
        if not self.rows:
            return f"No forward has been compressed yet: {self.note or IT_TAKES}."
        owners: dict[str, int] = {}
        for row in self.rows:
            if row.owner:
                owners[row.owner] = owners.get(row.owner, 0) + 1
        listed = ", ".join(f"{count} x {owner}" for owner, count in sorted(owners.items()))
        lines = [line for line in (self.note, self.exchanged, self.plan, self.monitor) if line]
        if self.loss:
            lines.append(self._after_loss())
        if self.recomputed:
            stored = f": {format_bytes(self.recomputed_bytes)} are not stored" if self.recomputed_bytes else ""
            lines.append(f"{self.recomputed}{stored}.")
        if regions := self._exact_in_regions():
            lines.append(regions)
        if self._is_exact_in_regions:
            lines.append("Tensors that compiled regions recompute have no rows: see the step peak.")
        if self.peak_source:
            lines += self._of_peak()
        if listed:
            lines.append(f"Not compressed, because other references keep them alive: {listed}.")
        if self.offload:
            lines.append(self._where())
        return "\n".join(lines)

    @property
    def _is_exact_in_regions(self) -> bool:
        """Whether a plan rounds nothing in compiled regions. What these recompute is in no row."""
        compiled = [row for row in self.rows if not row.owner and row.role == "compiled"]
        return bool(self.recomputed and compiled) and not any(_ROUNDED in row.codec for row in compiled)

    def _exact_in_regions(self) -> str:
        """Return a sentence on the tensors that compiled regions keep exactly, with the main reasons; empty if none."""
        reasons: Counter[str] = Counter()
        for row in self.rows:
            if row.role == "compiled" and row.codec == "kept" and not row.owner:
                reasons[row.why.removesuffix(": kept exactly")] += row.stored_bytes
        if not +reasons:
            return ""
        listed = [f"{format_bytes(count)}: {why}" for why, count in (+reasons).most_common(_REASONS)]
        if left := sum((+reasons).values()) - sum(count for _, count in reasons.most_common(_REASONS)):
            listed.append(f"{format_bytes(left)}: other reasons, see the rows")
        return f"Compiled regions keep {format_bytes(sum(reasons.values()))} exactly ({'; '.join(listed)})."

    def _of_peak(self) -> list[str]:
        lines = []
        if self.peak_source == ESTIMATED:
            lines.append(
                "The step peak is estimated from the saved tensors. Temporary memory of operators does not count."
            )
        if min(self.original_peak_bytes - self.original_bytes, self.peak_bytes - self.stored_bytes) < 0:
            lines.append(
                "As in memory=, the step peak excludes gradients that remain after backward, so it may be smaller "
                "than the saved tensors."
            )
        return lines

    def _after_loss(self) -> str:
        if not self.gradient_bytes:
            return f"{self.loss}."
        sums = self.original_bytes, self.stored_bytes
        before, after = (format_bytes(count + self.gradient_bytes) for count in sums)
        return (
            f"{self.loss}. Its backward begins with the gradient of the model's output, "
            f"{format_bytes(self.gradient_bytes)}, in addition to all saved tensors: {before} -> {after} at that "
            "moment."
        )

    def _where(self) -> str:
        if self.host_bytes:
            here = format_bytes(self.stored_bytes - self.host_bytes)
            return f"Moved to host memory: {format_bytes(self.host_bytes)}; left on the device: {here}."
        return f"Nothing was moved to host memory: {NOTHING_LEFT}."
