"""Where the blocks of a block-diagonal sketch begin and end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """Blocks of equal shape, one after the other.

    Attributes:
        blocks: how many.
        tokens: of each block.
        rows: of each block's sketch.
        first_block, first_token, first_row: where the run begins.
    """

    blocks: int
    tokens: int
    rows: int
    first_block: int
    first_token: int
    first_row: int


def runs(tokens: int, rows: int, block_size: int | None) -> list[Run]:
    """The blocks of a sketch of ``rows`` rows over ``tokens`` tokens, at most three runs of them.

    The blocks are as even as can be: their tokens, at most ``block_size``, differ by at most one, and so do their rows.
    Each has a row at least, so where rows are fewer than blocks there are fewer and larger blocks; none has more rows
    than tokens. ``None`` makes one block.

    Args:
        tokens: at least 1.
        rows: 1 to ``tokens``.
    """
    blocks = 1 if block_size is None else min((tokens + block_size - 1) // block_size, rows)
    # The first blocks are one larger: `tokens % blocks` of them in tokens, `rows % blocks` in rows.
    ends = sorted({tokens % blocks, rows % blocks, blocks} - {0})
    found: list[Run] = []
    block = token = row = 0
    for end in ends:
        height = tokens // blocks + (block < tokens % blocks)
        width = rows // blocks + (block < rows % blocks)
        found.append(Run(end - block, height, width, block, token, row))
        token, row, block = token + (end - block) * height, row + (end - block) * width, end
    return found
