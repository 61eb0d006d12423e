"""``StepwiseStore``: FewBit's collection of step functions by name and bits, and its files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from integrations._utils.archives import arrays_in
from integrations.policies.codebooks.shipped import SMOOTH, WIDTHS
from integrations.policies.codebooks.steps import StepTable
from integrations.policies.codebooks.tables import table

MOST_BYTES = 1 << 24
"""Of a file's arrays: a table of 8 bits takes some 4 KiB."""

# FewBit's borders have the ends of its domain around them.
END = 100.0

_KEY = re.compile(r"(.+?)(\d\d)-(borders|levels)")

Pair = tuple[Tensor, Tensor]


class StepwiseStore:
    """Step functions by ``(name, bits)``: all smooth functions in ``FUNCTIONS`` at 1 to 8 bits, and those that you add.

    A step function is FewBit's pair of borders and levels. The borders include the two ends of the domain; there is one
    level fewer, and at most ``2**bits`` levels. They are for ``x``, also for even derivatives. Other functions do not
    read a store: pass its entries to a function of ``fewbit.functional`` (``borders=, values=``).
    """

    def __init__(self) -> None:
        self._added: dict[tuple[str, int], StepTable] = {}
        self._tensors: dict[tuple[str, int, torch.device, torch.dtype], Pair] = {}

    def add(self, name: str, bits: int, steps: StepTable | tuple[Any, Any]) -> None:
        """Add a ``StepTable``, or a pair of borders with their ends and levels. An entry of the same name and bits is
        replaced.

        Raises:
            TypeError: ``name`` is not a str, or ``bits`` not an int.
            ValueError: ``bits`` is not from 1 to 8, there are more than ``2**bits`` levels, the borders do not ascend,
                or their number is not one more than that of the levels.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {name!r}")
        if type(bits) is not int:
            raise TypeError(f"bits must be an int, got {bits!r}")
        added = steps if isinstance(steps, StepTable) else _table(*steps)
        if added.even:
            added = _unfolded(added)
        if not 1 <= bits <= 8 or len(added.levels) > 2**bits:
            raise ValueError(f"bits must be from 1 to 8 and give at least {len(added.levels)} codes, got {bits}")
        self._added[name, bits] = added
        for key in [key for key in self._tensors if key[:2] == (name, bits)]:
            del self._tensors[key]

    def get(
        self, name: str, bits: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Pair:
        """Return borders with their ends, and levels.

        Calls with the same device and dtype, by default float32, return the same tensors.

        Raises:
            KeyError: there is no step function of this name and bits.
        """
        key = (name, bits, torch.device(device or "cpu"), dtype or torch.float32)
        if key not in self._tensors:
            found = self.table(name, bits)
            inner = found.boundaries
            low, high = min((-END, *inner)), max((END, *inner))
            borders = torch.tensor([low, *inner, high], dtype=key[3], device=key[2])
            self._tensors[key] = borders, torch.tensor(found.levels, dtype=key[3], device=key[2])
        return self._tensors[key]

    def table(self, name: str, bits: int) -> StepTable:
        """Return the step function as a ``StepTable``, whose boundaries leave out the ends.

        Raises:
            KeyError: there is no step function of this name and bits.
        """
        if (name, bits) in self._added:
            return self._added[name, bits]
        if (name, bits) not in _SHIPPED:
            raise KeyError(f"the store has no steps of {name!r} with {bits} bits; add() or load() them")
        return table(name, bits, parity="none")

    def load(self, path: str | PathLike[str]) -> None:
        """Add the step functions of a FewBit file: an ``.npz`` with the arrays ``gelu03-borders`` and
        ``gelu03-levels``.

        Adds either all of them or none. Needs NumPy.

        Raises:
            ImportError: NumPy is not installed.
            OSError: the file cannot be read.
            ValueError: it is not such a file; the message says why.
        """
        arrays: dict[tuple[str, int], dict[str, Any]] = {}
        for key, array in read_arrays(path).items():
            parts = _KEY.fullmatch(key)
            if not parts:
                raise ValueError(f"arrays in {path} must be named like gelu03-borders, got {key!r:.40}")
            arrays.setdefault((parts[1], int(parts[2])), {})[parts[3]] = array
        checked = StepwiseStore()
        for (name, bits), pair in arrays.items():
            if len(pair) != 2:
                raise ValueError(
                    f"{path} must hold borders and levels of {name}{bits:02d}, got {next(iter(pair))} alone"
                )
            try:
                checked.add(name, bits, (pair["borders"], pair["levels"]))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name}{bits:02d} in {path}: {error}") from error
        for (name, bits), steps in checked._added.items():
            self.add(name, bits, steps)

    def items(self, cached: bool = False) -> Iterator[tuple[tuple[Any, ...], Pair]]:
        """Iterate over ``(name, bits)`` and the pair of each; with ``cached``, over ``(name, bits, device, dtype)`` of
        earlier ``get`` calls."""
        if cached:
            yield from list(self._tensors.items())
            return
        for key in self._keys():
            yield key, self.get(*key)

    def __len__(self) -> int:
        return len(self._keys())

    def __contains__(self, key: object) -> bool:
        return key in self._added or key in _SHIPPED

    def __repr__(self) -> str:
        return f"<StepwiseStore: {len(self)} step functions, {len(self._added)} of them added>"

    def _keys(self) -> tuple[tuple[str, int], ...]:
        return tuple(dict.fromkeys((*_SHIPPED, *self._added)))


_SHIPPED = tuple((name, bits) for name in SMOOTH for bits in WIDTHS)

store = StepwiseStore()
"""A store to begin with."""


def read_arrays(path: str | PathLike[str]) -> dict[str, Any]:
    """The arrays of an ``.npz``, by name.

    Raises:
        ImportError: NumPy is not there.
        OSError: the file cannot be read.
        ValueError: it is no such file, damaged, or larger than any with step tables.
    """
    try:
        return arrays_in(path, MOST_BYTES)
    except ImportError as error:
        raise ImportError("FewBit's .npz files need NumPy: pip install numpy") from error
    except ValueError as error:
        raise ValueError(
            f"{error}; if it is damaged, download it again, or fit its tables again: python -m integrations.fewbit fit"
        ) from error


def _table(borders: Any, levels: Any) -> StepTable:
    found = [torch.as_tensor(numbers).double().tolist() for numbers in (borders, levels)]
    if not all(isinstance(numbers, list) for numbers in found) or len(found[0]) != len(found[1]) + 1:
        raise ValueError(
            "borders must have one entry more than levels, both in one dimension, got shapes "
            f"{tuple(torch.as_tensor(borders).shape)} and {tuple(torch.as_tensor(levels).shape)}; include both ends of "
            "the domain in borders"
        )
    return StepTable(tuple(found[0][1:-1]), tuple(found[1]))


def _unfolded(even: StepTable) -> StepTable:
    """The steps of ``x`` that steps of ``|x|`` are."""
    left = tuple(-boundary for boundary in reversed(even.boundaries))
    return StepTable(left + even.boundaries, even.levels[:0:-1] + even.levels)
