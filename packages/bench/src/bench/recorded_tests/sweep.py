"""The record of a compressed training step of many models and layers, and what passes."""

from __future__ import annotations

from bench.results.entry import Entry, at, metric, part, series
from bench.results.record import Kind
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
