"""``Subject``: what is swept, by ecosystem and name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from . import pyg_layers, timm_models, transformers_models, wide_models
from .case import Case


@dataclass(frozen=True)
class Subject:
    """A model or a layer of one of the ecosystems.

    Attributes:
        ecosystem: one of ``ECOSYSTEMS``; ``OTHER`` for a module of no library.
        family: that it stands for.
        name: by which its library knows it.
        make: makes it with random weights, and a batch for it; with the same seed of torch the same ones.
    """

    ecosystem: str
    family: str
    name: str
    make: Callable[[], Case]

    @property
    def place(self) -> tuple[str, str, str]:
        """Ecosystem, family and name."""
        return self.ecosystem, self.family, self.name


TIMM, TRANSFORMERS, PYG, OTHER = "timm", "transformers", "PyG", ""

ECOSYSTEMS: Mapping[str, str] = MappingProxyType(
    {TIMM: "timm", TRANSFORMERS: "transformers", PYG: "torch_geometric.nn"}
)
"""The library of each."""

INTEGRATIONS: Mapping[str, str] = MappingProxyType(
    {TIMM: "integrations.timm", TRANSFORMERS: "integrations.hf", PYG: "integrations.pyg", OTHER: "integrations"}
)
"""Where the ``compress_model`` of each is."""

SUBJECTS: tuple[Subject, ...] = (
    *(Subject(TIMM, family, name, make) for family, name, make in timm_models.entries()),
    *(Subject(TRANSFORMERS, family, name, make) for family, name, make in transformers_models.entries()),
    *(Subject(PYG, family, name, make) for family, name, make in pyg_layers.entries()),
)
"""All that there are, whether their libraries are installed or not."""

WIDE: tuple[Subject, ...] = tuple(
    Subject(TRANSFORMERS, family, name, make) for family, name, make in wide_models.entries()
)
"""Models of many widths: a sweep of their own."""
