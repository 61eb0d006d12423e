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
    inner: tuple[tuple[int, ...], ...]


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

    def ranks(self, kept, held):
        ranks = []
        for value, wish in enumerate(kept):
            made_in_passing = value in self.overwritten or (held is not None and not held[value])
            ranks.append(0 if self.keeps(value, wish) else 2 if made_in_passing else 1)
        return ranks

    def repeated(self, ranks):
        """The operators that outer and that inner segments repeat."""
        step, outer, inner = self.step, set(), set()
        while True:
            read_outside = {value for op in outer for value in step.reads[op]}
            read_inside = {value for op in inner for value in step.reads[op]}
            more = {
                op
                for op, made in enumerate(step.makes)
                for value in made
                if (ranks[value] == 1 and (self.read_by_backward(value) or value in read_inside))
                or (ranks[value] > 0 and value in read_outside)
            }
            inside = {
                op
                for op, made in enumerate(step.makes)
                for value in made
                if ranks[value] == 2 and (self.read_by_backward(value) or value in read_inside)
            }
            if (more, inside) == (outer, inner):
                return outer, inner
            outer, inner = more, inside

    def segments(self, ops, ranks, rank):
        links = [(self.producer[v], op) for op in ops for v in self.step.reads[op] if ranks[v] >= rank]
        return pieces([op not in ops for op in range(self.ops)], links)

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
            value in step.reads[op] for (_, piece), at in replays.items() if at >= event for op in piece
        )

    def __call__(self, kept, held=None):
        step = self.step
        ranks = self.ranks(kept, held)
        keep = [rank == 0 for rank in ranks]
        repeated = self.repeated(ranks)
        outer, inner = self.segments(repeated[0], ranks, 1), self.segments(repeated[1], ranks, 2)
        segment_of = [{op: piece for piece in outer for op in piece}, {op: piece for piece in inner for op in piece}]
        replays = {}  # with the events at which they are, in their order
        for i, row in enumerate(step.backward):
            for value in row:
                if ranks[value] == 2:
                    piece = segment_of[1][self.producer[value]]
                    if (2, piece) in replays:
                        continue
                    for read in [v for op in piece for v in step.reads[op] if ranks[v] == 1]:
                        replays.setdefault((1, segment_of[0][self.producer[read]]), self.ops + i)
                    replays[2, piece] = self.ops + i
                elif ranks[value] == 1:
                    replays.setdefault((1, segment_of[0][self.producer[value]]), self.ops + i)

        def read_inside(value, since=0):
            return ranks[value] == 1 and any(
                value in step.reads[op]
                for (rank, piece), at in replays.items()
                if rank == 2 and at >= since
                for op in piece
            )

        size = lambda values: sum(step.nbytes[value] for value in values)  # noqa: E731
        nbytes, again = [], set()
        for event in range(self.events):
            outside = size(v for v in range(len(kept)) if self.alive_outside(v, event, keep, replays))
            most = 0
            if event >= self.ops:
                again = {v for v in again if self.read_by_backward(v, event - self.ops) or read_inside(v, event)}
                between = step.other[event] if event == self.ops else min(step.other[event - 1 : event + 1])
                for rank, piece in [key for key, at in replays.items() if at == event]:
                    made = set()
                    for i, op in enumerate(piece):
                        made = (made | set(step.makes[op])) - {step.reuses[value] for value in step.makes[op]}
                        most = max(most, outside + size(again) + size(made) + step.scratch[op] + between)
                        made = {
                            value
                            for value in made
                            if (ranks[value] == rank and (self.read_by_backward(value) or read_inside(value)))
                            or (ranks[value] >= rank and any(value in step.reads[o] for o in piece[i + 1 :]))
                        }
                    again |= made
            scratch = step.scratch[event] if event < self.ops else 0
            nbytes.append(max(most, outside + size(again) + scratch + step.other[event]))
        seconds = sum(step.seconds[op] for ops in repeated for op in sorted(ops))
        return Usage(tuple(nbytes), seconds, tuple(outer), tuple(inner))

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
