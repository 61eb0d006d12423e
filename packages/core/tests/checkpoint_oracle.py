"""What the checkpoint solvers must give, written out from the definitions: slow, and without a thought of speed."""

import itertools
from typing import NamedTuple


def pieces(kept, edges):
    """The connected pieces of what is not kept."""
    piece_of = {tensor: {tensor} for tensor, is_kept in enumerate(kept) if not is_kept}
    for a, b in edges:
        if not kept[a] and not kept[b] and piece_of[a] is not piece_of[b]:
            joined = piece_of[a] | piece_of[b]
            for tensor in joined:
                piece_of[tensor] = joined
    return sorted({tuple(sorted(piece)) for piece in piece_of.values()})


def total(nbytes, edges, kept):
    """The objective: what is kept, and the largest segment."""
    largest = max((sum(nbytes[tensor] for tensor in piece) for piece in pieces(kept, edges)), default=0)
    return sum(size for size, is_kept in zip(nbytes, kept, strict=True) if is_kept) + largest


def least_total(nbytes, edges):
    inner = [tensor for tensor, size in enumerate(nbytes) if size]
    choices = ([True] * len(nbytes) for _ in range(1 << len(inner)))
    least = sum(nbytes)
    for number, kept in enumerate(choices):
        for i, tensor in enumerate(inner):
            kept[tensor] = not number >> i & 1
        least = min(least, total(nbytes, edges, kept))
    return least


class Usage(NamedTuple):
    nbytes: tuple[int, ...]
    seconds: float
    segments: tuple[tuple[int, ...], ...]


class Oracle:
    """`simulate`, with the set of values that are alive at each moment."""

    def __init__(self, step):
        self.step = step
        self.ops = len(step.reads)
        self.events = self.ops + len(step.backward)
        self.producer = {value: op for op, made in enumerate(step.makes) for value in made}
        self.overwritten = {old: value for value, old in enumerate(step.reuses) if old is not None}
        self.can_repeat = []
        for op, read in enumerate(step.reads):
            from_lost = [self.can_repeat[self.producer[value]] for value in read if value in self.overwritten]
            self.can_repeat.append(step.repeatable[op] and all(from_lost))
        self.optional = [
            value for value in range(len(step.nbytes)) if self.keeps(value, False) != self.keeps(value, True)
        ]

    def keeps(self, value, wish):
        if value in self.overwritten:
            return False
        return wish or not self.can_repeat[self.producer[value]] or self.step.until[value] == self.events - 1

    def read_by_backward(self, value, since=0):
        return any(value in row for row in self.step.backward[since:])

    def segments(self, keep):
        step, needed = self.step, {value for row in self.step.backward for value in row}
        while True:
            repeated = [op for op in range(self.ops) if any(not keep[v] and v in needed for v in step.makes[op])]
            more = needed | {value for op in repeated for value in step.reads[op]}
            if more == needed:
                break
            needed = more
        links = [(self.producer[v], op) for op in repeated for v in step.reads[op] if not keep[v]]
        return pieces([op not in repeated for op in range(self.ops)], links)

    def alive_outside(self, value, event, keep, replays):
        """Not counting values that were made again."""
        step = self.step
        if self.producer[value] > event:
            return False
        if (step.until[value] or 0) >= event or self.producer[value] == event:
            return True
        if value in self.overwritten and self.producer[self.overwritten[value]] <= event:
            return False
        if event < self.ops and any(value in row for row in step.reads[event:]):
            return True
        if not keep[value]:
            return False
        return self.read_by_backward(value, max(event - self.ops, 0)) or any(
            value in step.reads[op] for piece, at in replays.items() if at >= event for op in piece
        )

    def __call__(self, kept):
        step = self.step
        keep = [self.keeps(value, wish) for value, wish in enumerate(kept)]
        segments = self.segments(keep)
        segment_of = {op: piece for piece in segments for op in piece}
        replays = {}
        for i, row in enumerate(step.backward):
            for value in row:
                if not keep[value]:
                    replays.setdefault(segment_of[self.producer[value]], self.ops + i)
        size = lambda values: sum(step.nbytes[value] for value in values)  # noqa: E731
        nbytes, again = [], set()
        for event in range(self.events):
            outside = size(v for v in range(len(kept)) if self.alive_outside(v, event, keep, replays))
            most = 0
            if event >= self.ops:
                again = {value for value in again if self.read_by_backward(value, event - self.ops)}
                between = step.other[event] if event == self.ops else min(step.other[event - 1 : event + 1])
                for piece in [piece for piece, at in replays.items() if at == event]:
                    inner = set()
                    for i, op in enumerate(piece):
                        inner = (inner | set(step.makes[op])) - {step.reuses[value] for value in step.makes[op]}
                        most = max(most, outside + size(again) + size(inner) + step.scratch[op] + between)
                        inner = {
                            value
                            for value in inner
                            if not keep[value]
                            and (self.read_by_backward(value) or any(value in step.reads[o] for o in piece[i + 1 :]))
                        }
                    again |= inner
            scratch = step.scratch[event] if event < self.ops else 0
            nbytes.append(max(most, outside + size(again) + scratch + step.other[event]))
        return Usage(tuple(nbytes), sum(step.seconds[op] for op in sorted(segment_of)), tuple(segments))

    def front(self):
        """The peaks and seconds that no other choice beats."""
        points = set()
        for choice in itertools.product((False, True), repeat=len(self.optional)):
            kept = [True] * len(self.step.nbytes)
            for value, wish in zip(self.optional, choice, strict=True):
                kept[value] = wish
            usage = self(kept)
            points.add((max(usage.nbytes), usage.seconds))
        best = []
        for peak, seconds in sorted(points):
            if not best or seconds < best[-1][1]:
                best.append((peak, seconds))
        return best
