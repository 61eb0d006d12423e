"""``Sketching``: how a layer sketches its input."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("gaussian", "rademacher", "dct", "dft", "rows")
"""The kinds of sketches."""


@dataclass(frozen=True)
class Sketching:
    """The size and the kind of a sketch, checked.

    Attributes:
        proj_dim_ratio: rows of the sketch as a share of the tokens, above 0 and at most 1.
        proj_dim: rows of the sketch; one of the two is given.
        proj_dim_min, proj_dim_max: bounds of the rows.
        matmul: gaussian, rademacher, dct, dft or rows.
        block_size: most tokens of a block of the sketch; ``None`` for one block. ``rows`` has no blocks.
        bits: 1 to 8 stores the sketch in as many bits an element; ``None`` stores it as it is.

    Raises:
        TypeError: an option is of another type.
        ValueError: an option is out of range, or both or none of ratio and dimension are given.
    """

    proj_dim_ratio: float | None = None
    proj_dim: int | None = None
    proj_dim_min: int | None = None
    proj_dim_max: int | None = None
    matmul: str = "gaussian"
    block_size: int | None = 1024
    bits: int | None = None

    def __post_init__(self) -> None:
        ratio = self.proj_dim_ratio
        if (ratio is None) == (self.proj_dim is None):
            given = "neither" if ratio is None else f"proj_dim_ratio={ratio!r} and proj_dim={self.proj_dim!r}"
            raise ValueError(
                f"either proj_dim_ratio or proj_dim must give the size of the sketch, got {given}; "
                "proj_dim_ratio=0.1 keeps a tenth of the input"
            )
        if ratio is not None:
            if isinstance(ratio, bool) or not isinstance(ratio, int | float):
                raise TypeError(f"proj_dim_ratio must be a number, got {ratio!r}")
            if not 0 < ratio <= 1:
                raise ValueError(f"proj_dim_ratio must be above 0 and at most 1 (exact), got {ratio}")
        for name, most in (("proj_dim", None), ("proj_dim_min", None), ("proj_dim_max", None), ("block_size", 1 << 31)):
            _require_positive(name, getattr(self, name), most)
        if self.proj_dim_min and self.proj_dim_max and self.proj_dim_min > self.proj_dim_max:
            raise ValueError(
                f"proj_dim_min must be at most proj_dim_max, got {self.proj_dim_min} and {self.proj_dim_max}"
            )
        if self.matmul not in KINDS:
            raise ValueError(f"matmul must be one of {', '.join(KINDS)}, got {self.matmul!r}")
        if self.bits is not None:
            if type(self.bits) is not int:
                raise TypeError(f"bits must be an int or None, got {self.bits!r}")
            if not 1 <= self.bits <= 8:
                raise ValueError(f"bits must be from 1 to 8, or None to store the sketch as it is, got {self.bits}")

    def rows(self, tokens: int) -> int:
        """Rows of the sketch of so many tokens, 1 to ``tokens``; where it is all of them the input is kept itself."""
        rows = self.proj_dim if self.proj_dim is not None else int(self.proj_dim_ratio * tokens)  # type: ignore[operator]
        if self.proj_dim_min is not None:
            rows = max(rows, self.proj_dim_min)
        if self.proj_dim_max is not None:
            rows = min(rows, self.proj_dim_max)
        return min(max(rows, 1), tokens)

    def __str__(self) -> str:
        size = f"proj_dim_ratio={self.proj_dim_ratio}" if self.proj_dim is None else f"proj_dim={self.proj_dim}"
        parts = [size]
        parts += [
            f"{name}={value}" for name in ("proj_dim_min", "proj_dim_max") if (value := getattr(self, name)) is not None
        ]
        parts.append(f"matmul={self.matmul}")
        if self.matmul != "rows":
            parts.append(f"block_size={self.block_size}")
        if self.bits is not None:
            parts.append(f"bits={self.bits}")
        return ", ".join(parts)


def _require_positive(name: str, value: object, most: int | None) -> None:
    if value is None:
        return
    if type(value) is not int:
        raise TypeError(f"{name} must be an int or None, got {value!r}")
    if value < 1 or (most is not None and value > most):
        raise ValueError(f"{name} must be at least 1{f' and at most {most}' if most else ''}, got {value}")
