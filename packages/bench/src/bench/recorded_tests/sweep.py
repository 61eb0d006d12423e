"""The record of a compressed training step of many models and layers, and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.results.entry import Entry, at, metric, part, series
from bench.results.record import Kind, Record
from bench.results.report import Report
from bench.results.tables import marked, mib, table
from bench.units import MIB
from integrations import LEVELS

ERROR = 0.15
"""The most that the gradient may be off by, relative to its length."""


def easing(level: str) -> dict[str, int]:
    """Options that are tried where a level's error is larger: a bit more for the inputs of linear operators."""
    bits = LEVELS[level].bits
    return {} if bits is None or bits >= 8 else {"bits": bits + 1}


@part("step", "a training step of a model under compression, beside the plain step with the same random numbers")
class Swept(Entry):
    """One subject."""

    ecosystem: str = at("of a Subject")
    family: str = at("that it stands for")
    name: str = at("by which its library knows it")
    what: str = metric("", "the batch, in words", default="")
    parameters: int = metric("", "how many", default=0)
    original_bytes: int = metric("bytes", "that autograd alone keeps of the forward, by the report", default=0)
    stored_bytes: int = metric("bytes", "that are kept instead", default=0)
    rows: int = metric("", "of the report: tensors that autograd saved", default=0)
    kept: str = metric("", "the operator and the reason that keep the most bytes exactly", default="")
    kept_bytes: int = metric("bytes", "those", default=0)
    why: str = metric("", "no fewer bytes are stored, in the report's words; empty where fewer are", default="")
    errors: list[float] = series("", "of the gradient of all parameters, relative, by step, each with noise of its own")
    where: str = metric("", "the parameter with the largest part of the squared error in the first step", default="")
    share: float = metric("", "that part", default=0.0)
    eased_errors: list[float] = series("", "as errors, with the options of easing; none where errors are small without")
    eased_bytes: int = metric("bytes", "that are stored then", default=0)
    repeated: bool = metric("", "whether two plain steps have the same gradient, bit for bit", default=False)
    same_loss: bool = metric("", "whether the loss is the plain one, bit for bit", default=False)
    stepped: bool = metric("", "whether an optimizer changed what has a gradient, to finite numbers", default=False)
    restored: bool = metric(
        "",
        "whether restore_model left the model as it was, its gradient bit for bit if plain steps repeat",
        default=False,
    )
    plain_seconds: float = metric("s", "of the quickest plain step", default=0.0)
    seconds: float = metric("s", "of the quickest compressed one", default=0.0)

    @property
    def error(self) -> float:
        """The root of the mean square of ``errors``; infinite where there are none."""
        return _root_mean_square(self.errors)

    @property
    def eased_error(self) -> float:
        """The same of ``eased_errors``."""
        return _root_mean_square(self.eased_errors)

    @property
    def ratio(self) -> float:
        """Bytes before over bytes after; 1 where there are none."""
        return self.original_bytes / self.stored_bytes if self.stored_bytes else 1.0

    @property
    def eased_ratio(self) -> float:
        """The same where ``easing`` was tried."""
        return self.original_bytes / self.eased_bytes if self.eased_bytes else 1.0

    @property
    def accurate(self) -> bool:
        """Whether the gradient's error is small enough at the level as it is."""
        return self.error <= ERROR  # a NaN is no pass

    @property
    def smaller(self) -> bool:
        """Whether fewer bytes are stored."""
        return self.stored_bytes < self.original_bytes

    @property
    def passed(self) -> bool:
        """Whether all is as it should be; the test that measures it says what is not."""
        accurate = self.accurate or self.eased_error <= ERROR
        smaller = self.smaller or bool(self.why)
        whole = self.rows > 0 and self.same_loss and self.stepped and self.restored
        return not self.failure and accurate and smaller and whole


def _root_mean_square(values: list[float]) -> float:
    return float((sum(value**2 for value in values) / len(values)) ** 0.5) if values else float("inf")


KIND = Kind(
    "sweep",
    (Swept,),
    {"level": "level", "steps": "number of steps", "seed": "seed", "device": "device"},
    packages=("timm", "transformers", "torch-geometric"),
)


MUCH = 0.25  # of what is stored

WHY: Mapping[str, str] = MappingProxyType(
    {
        "mobileone_s0": "Its untrained gradient is ill-conditioned: computed in float32 it is off by 0.005 from "
        "float64's (ResNet-18's by 0.0000015), and changing each weight by a millionth changes it by 6 %.",
        "fastvit_t8": "Convolutions of one weight a channel stand before a BatchNorm, which undoes their scale: what "
        "is left of their gradient is the small difference of large sums. Without these weights the error is 0.11.",
        "efficientvit_b0": "Its linear attention divides one part of a matrix product by another, which may be small. "
        "In the exact gradient the two parts cancel; with operands that were rounded they do not. With the operands of "
        "these products exact, the error is 0.15.",
        "vit": "Its error follows from the weights and the batch that are drawn: over eight seeds it is 0.08 to 0.26 "
        "on a CPU, and a GPU draws others.",
    }
)
"""What was found out about those that did not pass at L1."""


def notes(record: Record) -> Iterator[str]:
    """Paragraphs: what was done, then what is to be said of single subjects."""
    count, level, swept = record.settings["steps"], record.settings["level"], record.of(Swept)
    steps = f"{count} step{'s' * (count > 1)}"
    yield (
        f"One training step at {level} of each, with random weights and data: compress_model, forward and "
        "backward, report, an optimizer's step, restore_model. Saved and stored: what autograd alone keeps of the "
        "model's forward, before and after. Error: the distance of the gradient of all parameters together from that "
        "of the plain step, over the plain one's length; the root of the mean square over "
        f"{steps} from the same weights, batch and dropout masks, each with rounding noise of its own. BatchNorm "
        "trains."
    )
    yield (
        f"Passed: the error is at most {ERROR:g}, the loss is the plain one bit for bit, fewer bytes are stored or the "
        "report says why not, the optimizer changed every parameter that has a gradient, and restore_model brought the "
        "plain model back: classes, attributes, hooks, state_dict keys, and the plain gradient, bit for bit where two "
        "plain steps have the same."
    )
    if LEVELS[level].bits == 4:
        yield (
            "Four bits are off by 0.14 of a group's length where it holds 128 normal numbers, and by 0.15 where it "
            "holds 256, as groups of linear inputs did up to commit 4ecfcb27a: they span 5.1 and 5.6 standard "
            "deviations in 15 steps, and rounding at random is off by a step over the root of 6. A linear layer's "
            "gradient comes out there if its samples' gradients have random signs, as those of untrained transformers "
            "have; by less where they agree, by more where inputs agree and gradients cancel, or a group has outliers."
        )
    if any(entry.eased_errors for entry in swept):
        yield (
            f"Where {level} errs by more, the same was measured with {eased(record)}, and passes if that errs "
            "by no more; error, and times smaller, are in the last column."
        )
    for entry in swept:
        if entry.why and not entry.failure:
            yield f"No fewer bytes are stored of {entry.name}: {entry.why}."
    yield from _kept(swept)
    for entry in swept:
        if not entry.repeated and not entry.failure:
            yield (
                f"Two plain steps of {entry.name} have different gradients; after restore_model its gradient is off by "
                "at most 10 times as much."
            )
    for entry in swept:
        if not entry.passed:
            yield f"Did not pass: {entry.name}, {_shortcoming(entry)}. {WHY.get(entry.name, '')}".rstrip()


def _shortcoming(entry: Swept) -> str:
    if entry.failure:
        return entry.failure
    if not entry.accurate and not entry.eased_error <= ERROR:
        return f"the gradient's error is {entry.error:.3f}, {entry.share:.0%} of its square in {entry.where}"
    return "its loss, its report, the optimizer's step or the restored model is not as it should be"


def _kept(swept: Sequence[Swept]) -> Iterator[str]:
    """What keeps much exactly, by reason."""
    found: dict[str, list[str]] = {}
    for entry in swept:
        if not entry.failure and entry.kept_bytes > MUCH * entry.stored_bytes:
            sizes = f"{entry.kept_bytes / MIB:.2f} of {entry.stored_bytes / MIB:.2f} MiB"
            found.setdefault(entry.kept, []).append(f"{entry.name} ({sizes})")
    for reason, names in found.items():
        yield f"Much of what is stored is there because of {reason}. {', '.join(names)}."


def eased(record: Record) -> str:
    """The options of ``easing``, in words."""
    return ", ".join(f"{name}={value}" for name, value in easing(record.settings["level"]).items())


STEP = "Step: the quickest compressed one over the quickest plain one, of models as small as these are."
TITLE = "Sweep: a compressed training step of many models and layers"


def parts(record: Record) -> Iterator[RenderableType]:
    """A table for each ecosystem, and how many passed."""
    yield from (_table(record, ecosystem) for ecosystem in record.values(Swept, "ecosystem"))
    yield Text("\n".join(summary(record)), style="bold")


def summary(record: Record) -> Iterator[str]:
    """A line for each ecosystem: how many passed, and the worst of them."""
    for ecosystem in record.values(Swept, "ecosystem"):
        entries = record.of(Swept, ecosystem=ecosystem)
        measured = [entry for entry in entries if not entry.failure]
        exact = sum(entry.passed and entry.accurate for entry in entries)
        line = f"{ecosystem}: {exact} of {len(entries)} passed at {record.settings['level']}"
        if others := sum(entry.passed and not entry.accurate for entry in entries):
            line += f", {others} more with {eased(record)}"
        if measured:
            worst = max(measured, key=lambda entry: entry.error)
            least = min(measured, key=lambda entry: entry.ratio)
            line += f"; largest error {worst.error:.3f}, {worst.name}; smallest ratio {least.ratio:.1f}, {least.name}"
        yield line


def _table(record: Record, ecosystem: str) -> Table:
    return table(
        record.of(Swept, ecosystem=ecosystem),
        (ecosystem, lambda entry: entry.name),
        ("family", lambda entry: entry.family),
        ("batch", lambda entry: entry.what),
        ("parameters\nmillions", lambda entry: f"{entry.parameters / 1e6:.2f}"),
        ("saved\nMiB", lambda entry: mib(entry.original_bytes, 2)),
        ("stored\nMiB", lambda entry: mib(entry.stored_bytes, 2)),
        ("times\nsmaller", lambda entry: marked(f"{entry.ratio:.1f}", True if entry.smaller else None)),
        ("error", lambda entry: marked(f"{entry.error:.3f}", entry.accurate)),
        (f"with\n{eased(record)}", _eased),
        ("step", lambda entry: f"{entry.seconds / entry.plain_seconds:.2f}"),
        ("passed", lambda entry: marked("", entry.passed)),
        labels=3,
        instead=lambda entry: [*[""] * 7, marked("", entry.passed)] if entry.failure else None,
    )


def _eased(entry: Swept) -> str:
    return f"{entry.eased_error:.3f}, {entry.eased_ratio:.1f}" if entry.eased_errors else ""


def _notes(record: Record) -> Iterator[str]:
    yield from notes(record)
    yield STEP


REPORT = Report(TITLE, parts, _notes)
