"""The charts of a page, in SVG and HTML, so that no library is needed to make or to read it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from integrations.report.curve import make_curve
from integrations.report.row import Row
from integrations.report.tree import cut, make_tree
from integrations.report.words import choose_unit, format_bytes

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 660, 330, 46, 24
_PARTS = 16  # the most parts of the model


def step(rows: Sequence[Row], gradient_bytes: int = 0) -> str:
    """Memory over one step; empty if nothing was saved. See ``make_timeline``."""
    curve = make_curve(rows, _PARTS, gradient_bytes)
    if curve is None:
        return ""
    top = 1.3 * max(curve.original)
    last = len(curve.original) - 1

    def x(moment: float) -> float:
        return _LEFT + (_WIDTH - _LEFT) * moment / last

    def y(count: float) -> float:
        return (_HEIGHT - _BOTTOM) * (1 - count / top)

    def area(values: list[int], kind: str) -> str:
        moves = [f"M{x(0):.1f},{y(0):.1f}"]
        for moment, value in enumerate(values):
            moves.append(f"V{y(value):.1f}H{x(min(moment + 1, last)):.1f}")
        return f'<path class="{kind}" d="{"".join(moves)}V{y(0):.1f}Z"/>'

    floor = y(0)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="memory over one step">']
    labels = []  # drawn last, above everything else
    for number, band in enumerate(curve.bands):
        start, width = x(band.start), x(band.end) - x(band.start)
        if number % 2 == 0:
            parts.append(f'<rect class="band" x="{start:.1f}" y="0" width="{width:.1f}" height="{floor:.1f}"/>')
        if width > 13:
            middle = start + width / 2 + 4
            turned = f'transform="rotate(-90 {middle:.1f} 4)"'
            labels.append(f'<text x="{middle:.1f}" y="4" text-anchor="end" {turned}>{escape(band.name)}</text>')
    size, unit = choose_unit(max(curve.original))
    for tick in _ticks(top / size):
        parts.append(
            f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH}" y1="{y(tick * size):.1f}" y2="{y(tick * size):.1f}"/>'
        )
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick * size) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts += [area(curve.original, "before"), area(curve.stored, "after")]
    apart = max(curve.device) < max(curve.stored)
    if apart:
        parts.append(area(curve.device, "device"))
    parts += labels
    turn = x(curve.turn)
    parts.append(f'<line class="turn" x1="{turn:.1f}" x2="{turn:.1f}" y1="0" y2="{floor:.1f}"/>')
    for values in (curve.original, curve.stored):
        height = min(y(max(values)), floor - 8)
        parts.append(f'<text class="value" x="{turn + 8:.1f}" y="{height - 5:.1f}">{format_bytes(max(values))}</text>')
    for middle, words in ((x(curve.turn / 2), "forward →"), (x(curve.turn * 1.5), "backward →")):
        parts.append(f'<text x="{middle:.1f}" y="{_HEIGHT - 5}" text-anchor="middle">{words}</text>')
    return f"<h2>Memory over one step, {unit}</h2>" + "".join(parts) + "</svg>" + _keys(apart)


def bars(rows: Sequence[Row]) -> str:
    """What is kept, by module, before and after."""
    parts = cut(make_tree(rows), _PARTS)
    most = max(part.original_bytes for part in parts) or 1
    lines = []
    for part in parts:
        before, after = part.original_bytes, part.stored_bytes
        wide, narrow = 58 * before / most, 58 * after / most
        words = f", {part.smaller}{'×' if after else ''}" if part.smaller else ""
        lines.append(
            f'<span>{escape(part.path or part.name)}</span><div title="{format_bytes(before)}, then '
            f'{format_bytes(after)}"><i class="before" style="width:{wide:.2f}%"></i><i class="after" '
            f'style="width:{narrow:.2f}%"></i><em style="left:{wide:.2f}%">{format_bytes(before)}{words}</em></div>'
        )
    return f'<div class="bars">{"".join(lines)}</div>'


def _keys(apart: bool) -> str:
    named = [("before", "as autograd keeps it"), ("after", "compressed")]
    if apart:
        named.append(("device", "of that, on the device"))
    keys = "".join(f'<span><i class="key {kind}"></i>{words}</span>' for kind, words in named)
    return (
        f'<div class="keys">{keys}</div><div class="keys">After each tensor that forward saves and backward lets go: '
        "not what operators hold for a moment, and no gradients.</div>"
    )


def front(points: Sequence[tuple[int, float]], chosen: tuple[int, float]) -> str:
    """Memory against time, for plans that no other beats in both.

    Args:
        points: bytes, and the added time in per cent.
        chosen: the plan that is marked.
    """
    size, unit = choose_unit(max(1, max(count for count, _ in points)))
    right, top = 1.05 * max(count for count, _ in points) or 1, 1.15 * max(time for _, time in points) or 1

    def x(count: float) -> float:
        return _LEFT + (_WIDTH - _LEFT) * count / right

    def y(time: float) -> float:
        return (_HEIGHT - _BOTTOM) * (1 - max(0.0, time) / top)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 14}" role="img" aria-label="memory against time">']
    for tick in _ticks(top):
        parts.append(f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts += [
        f'<text x="{x(tick * size):.1f}" y="{y(0) + 16:.1f}" text-anchor="middle">{tick:g}</text>'
        for tick in _ticks(right / size)
    ]
    moves = "L".join(f"{x(count):.1f},{y(time):.1f}" for count, time in points)
    parts.append(f'<path d="M{moves}" fill="none" stroke="var(--after)" stroke-width="1.5"/>')
    parts += [f'<circle class="after" cx="{x(count):.1f}" cy="{y(time):.1f}" r="3"/>' for count, time in points]
    count, time = chosen
    parts.append(f'<circle class="device" cx="{x(count):.1f}" cy="{y(time):.1f}" r="6"/>')
    parts.append(f'<text x="{_WIDTH}" y="{y(0) + 32:.1f}" text-anchor="end">activation peak, {unit}</text></svg>')
    keys = (("after", "added time of plans, %"), ("device", "this plan"))
    listed = "".join(f'<span><i class="key {kind}"></i>{words}</span>' for kind, words in keys)
    return f'{"".join(parts)}<div class="keys">{listed}</div>'


def _ticks(top: float) -> list[float]:
    """About five round numbers from 0 to below ``top``."""
    wanted = top / 5
    size = 10.0 ** len(str(int(wanted))) / 10 if wanted >= 1 else 0.1
    while wanted < size:
        size /= 10
    interval = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= wanted * 0.8)
    return [round(interval * number, 6) for number in range(int(top / interval) + 1)]
