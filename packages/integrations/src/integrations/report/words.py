"""How numbers and codecs are written, in tables, charts and pages alike."""

from __future__ import annotations

from integrations.tracing.storage.records import RECOMPUTED

LOSS = "(loss)"
"""In the place of a module's path: what a loss saves that is computed from the model's output."""


KEPT = frozenset({"kept", "copied"})
"""Codecs of tensors that are kept unchanged."""

PLANNED, ESTIMATED = "planned", "estimated"
"""The source of a step's peak: a plan's simulation, or an estimate from saved tensors."""

NOTHING_LEFT = "offload moves large CUDA tensors that only autograd keeps alive, and there are none"

IT_TAKES = (
    "call the model itself, model(...), in train() mode with gradients enabled; to compress calls of other methods "
    "or of submodules, use a block: with integrations.compress(model)"
)
"""What a forward needs to be compressed, in words."""


def format_bytes(count: float) -> str:
    """A number of bytes in the unit that suits it: ``1536`` is ``"1.5 KiB"``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def divide(before: float, after: float) -> float:
    """Return ``before / after``, how many times less is kept; 1 if nothing is left."""
    return before / after if after else 1.0


def format_change(before: float, after: float) -> str:
    """Format two numbers of bytes, with the unit once if it is the same: ``"7.8 -> 3.1 MiB"``."""
    one, other = format_bytes(before), format_bytes(after)
    number, _, unit = one.partition(" ")
    return f"{number if other.endswith(f' {unit}') else one} -> {other}"


def choose_unit(largest: int) -> tuple[int, str]:
    """The unit for numbers up to ``largest`` bytes on one axis: how many bytes it is, and its name."""
    for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if largest >= size:
            return size, name
    return 1, "bytes"


def format_seconds(seconds: float) -> str:
    """A time in the unit that suits it: ``0.0015`` is ``"1.5 ms"``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1e6:.0f} us"


def short_operator(name: str) -> str:
    """An operator's name without its library and its overload: ``aten.add_.Tensor`` is ``"add"``."""
    return name.partition(".")[2].partition(".")[0].strip("_") or name


def short_codec(codec: str) -> str:
    """A codec's name without the defaults."""
    return codec.replace(", rounding='stochastic'", "").replace("()", "")


def shortened(text: str, width: int) -> str:
    """Shorten a name in the middle to at most ``width`` characters: ``"base_model.….q_proj"``. Keep whole parts of a
    path if possible."""
    if len(text) <= width:
        return text
    parts = text.split(".")
    for head in (parts[0] + ".", ""):
        for first in range(1 if not head else 2, len(parts)):
            found = f"{head}….{'.'.join(parts[first:])}"
            if len(found) <= width:
                return found
    tail = max(width - 1, 0) // 2
    return f"{text[: max(width - 1 - tail, 0)]}…{text[len(text) - tail :]}"


def format_shape(shape: tuple[int, ...]) -> str:
    """``(8, 64)`` as ``"8x64"``."""
    return "x".join(map(str, shape)) or "scalar"


def format_stored(codec: str, count: int) -> str:
    """What is kept for a row; ``-`` if nothing is, because backward recomputes it."""
    if codec == RECOMPUTED:
        return "-"
    return format_bytes(count) if count else "shared"


def format_share(part: int, whole: int) -> str:
    """A part in per cent of the whole. What rounds to 0 is told apart from nothing."""
    if not part or not whole:
        return ""
    return f"{100 * part / whole:.1f}%" if part / whole >= 0.0005 else "<0.1%"
