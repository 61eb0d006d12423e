"""Recorded stages of ``tools/gpu.sh``, the predecessor of ``pytest -m cuda`` and ``tools/gpu.py``.

Nothing writes ``gpu-*.json`` any more. What an H100 found is read, printed and rendered as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.results.entry import Entry, at, metric, nested, numbers, part, series, table
from bench.results.record import Kind, Record
from bench.results.report import Report
from bench.results.tables import columns, short

OK, MISSED, FAILED, NOT_REACHED = "ok", "missed", "failed", "not reached"
VERDICTS = ((FAILED, "failed"), (MISSED, "does not hold"), (NOT_REACHED, "not settled"), (OK, "holds"))
"""What a claim comes to, by the outcomes of the rows that speak for it: the first that is among them decides."""
_REASON = 70  # characters of a reason in a table; the file has all of it

CLAIMS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "tests": {
            "bits": "CUDA gives the CPU's bits: every codec and fused operator, dtype, width, tail and misalignment.",
            "streams": "Kernels run on the current stream, and a CUDA graph replays them with new noise.",
            "capture": "A whole compressed step that a CUDA graph captured rounds anew in every replay.",
            "large": "Nothing is held in 32 bits: tensors of more than 2^31 elements come back.",
            "offload": "Offload is exact, the host does not wait, and its reserved peak is bounded.",
            "compiled": "torch.compile compresses, with inductor and with `reduce-overhead`, and replays round anew.",
            "steps": "Each way to train has the gradient of its bits, and replayed steps store what the first does.",
            "elsewhere": "What else takes a GPU works: autocast, workspaces, side streams, and steps that never wait.",
        },
        "sanitize": {
            "memcheck": "No operator reads or writes outside of its tensors.",
            "racecheck": "No kernel has a race in shared memory.",
            "synccheck": "No kernel synchronises where threads of it have left.",
            "results": "Every operator returns the CPU's bits for tensors that begin and end anywhere.",
        },
        "kernels": {
            "float32": "Every codec moves at least 0.9 of a copy's bytes a second with float32.",
            "integers": "`Narrow` moves at least 0.9 of a copy's bytes a second with int64 and int32.",
            "bfloat16": "GroupAffine at 4 and 8 bits moves at least 0.8 of a copy's bytes a second with bfloat16.",
            "groups": "Groups of 192 reach the same, but for Float8's.",
            "others": "Every other codec reaches 0.8 with bfloat16, too, and Float8 0.9 with float32 in groups of 192: "
            "the estimate expects 1 bit, 2 bits and Float8 to miss that.",
        },
        "models": {
            "smaller": "Each way to train reaches a lower peak than plain training does.",
            "planned": "A planned step keeps within the peak that its plan said.",
        },
        "search": {
            "resnet50-gact": "ResNet-50 trains with 4.2 times the batch in 16 GiB at some level (as GACT).",
            "resnet50-actnn": "ResNet-50 trains with 6.6 times the batch in 16 GiB with Q-layers (as ActNN, at least).",
            "bert-gact": "BERT-large trains with 24.7 times the batch in 16 GiB at some level (as GACT, at most).",
        },
    }
)
"""What each recorded stage would settle: by stage and by the name that rows speak for."""


@numbers
class Row:
    """What a part of a stage came to."""

    case: str = metric("", "what was run", default="")
    outcome: str = metric("", "ok, missed, failed, skipped or not reached", default=OK)
    reason: str = metric("", "of another outcome than ok; what else is to be said of that one", default="")
    seconds: float = metric("s", "that it took, where it was a process of its own", default=0.0)
    values: dict[str, float | str] = table("", "by the heading of their column")
    claims: list[str] = series("", "that it speaks for, of bench.suites.gpu_stages.CLAIMS")


@part("stage", "a stage of tools/gpu.sh")
class StageResults(Entry):
    """One stage."""

    stage: str = at("its name")
    device: str = metric("", "cuda", default="cuda")
    dry: bool = metric("", "whether sizes were small, to show that it works: nothing is settled then", default=False)
    rows: list[Row] = nested(Row, "of all cases, those that were not reached included", many=True)
    seconds: float = metric("s", "that it took", default=0.0)

    def verdict(self, claim: str) -> str:
        """Return whether a claim holds, by the rows that speak for it."""
        outcomes = {row.outcome for row in self.rows if claim in row.claims}
        return next((verdict for outcome, verdict in VERDICTS if outcome in outcomes), "not settled")


def _head(record: Record) -> dict[str, str]:
    [stage] = record.of(StageResults)
    return {"stage": f"{stage.stage}, {stage.seconds / 60:.1f} minutes"}


def parts(record: Record) -> Iterator[RenderableType]:
    """Yield a line for each row, long reasons in full, and whether each claim holds."""
    for stage in record.of(StageResults):
        yield _rows(stage)
        long = [row for row in stage.rows if row.outcome != OK and len(row.reason) > _REASON]
        yield Text("\n".join(f"{row.case}: {row.outcome}: {row.reason}" for row in long))
        yield _claims(stage)


def _rows(stage: StageResults) -> Table:
    headings = list(dict.fromkeys(heading for row in stage.rows for heading in row.values))
    seconds = ["s"] if any(row.seconds for row in stage.rows) else []
    broken = [heading.replace(" ", "\n") for heading in headings]  # so that many columns fit beside each other
    made = columns(stage.stage, *broken, *seconds, "outcome")
    texts = {heading for row in stage.rows for heading, value in row.values.items() if isinstance(value, str)}
    for column, heading in zip(made.columns[1:], [*headings, *seconds, "outcome"], strict=True):
        if heading in ("outcome", *texts):
            column.justify, column.no_wrap = "left", False
    for row in stage.rows:
        cells = [_cell(row.values.get(heading, "")) for heading in headings]
        cells += [f"{row.seconds:.1f}" if row.seconds else ""] * len(seconds)
        made.add_row(row.case, *cells, f"{row.outcome}: {short(row.reason, _REASON)}" if row.reason else row.outcome)
    return made


def _claims(stage: StageResults) -> Table:
    made = columns(f"what the stage {stage.stage} settles", "verdict", labels=2)
    for name, text in CLAIMS.get(stage.stage, {}).items():
        made.add_row(text, stage.verdict(name))
    return made


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


KIND = Kind("gpu", (StageResults,))
REPORT = Report("GPU", parts, head=_head)
