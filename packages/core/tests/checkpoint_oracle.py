"""What the checkpoint solvers must give, written out from the definitions: slow, and without a thought of speed."""

import itertools
from dataclasses import replace
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
    variance: float


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

    def alive_outside(self, value, event, waits_until, stored):
        """As it is, and not counting values that were recomputed. `stored`: when a form takes its place."""
        step = self.step
        if self.producer[value] > event:
            return False
        if (step.until[value] or 0) >= event or self.producer[value] == event:
            return True
        if value in self.overwritten and self.producer[self.overwritten[value]] <= event:
            return False
        if event < self.ops and any(value in row for row in step.reads[event:]):
            return True
        return event <= (waits_until[value] if stored is None else stored)

    def replays(self, ranks, outer, inner):
        """Each (rank, segment) with the event at which it is repeated, in their order."""
        step, replays = self.step, {}
        segment_of = [{op: piece for piece in outer for op in piece}, {op: piece for piece in inner for op in piece}]
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
        return replays

    def __call__(self, kept, held=None, forms=None):
        step = self.step
        values = range(len(kept))
        ranks = self.ranks(kept, held)
        repeated = self.repeated(ranks)
        outer, inner = self.segments(repeated[0], ranks, 1), self.segments(repeated[1], ranks, 2)
        replays = self.replays(ranks, outer, inner)
        # What waits: the operators that read it when they are repeated, with the events, and the event of its last use.
        readers = {
            value: [
                (op, at)
                for (rank, piece), at in replays.items()
                for op in piece
                if ranks[value] < rank and value in step.reads[op]
            ]
            for value in values
        }
        last = {
            value: max([self.ops + i for i, row in enumerate(step.backward) if value in row], default=-1)
            for value in values
        }
        waits_until = {value: max([last[value], *(at for _, at in readers[value])]) for value in values}
        made_at = {
            value: [
                at for (rank, piece), at in replays.items() if rank == ranks[value] and self.producer[value] in piece
            ]
            for value in values
        }
        form = {}
        for value in values:
            wishes = [] if forms is None or forms[value] < 0 else [step.forms[value][forms[value]]]
            wishes += [step.forms[value][0]] if step.formed[value] else []
            serving = [wish for wish in wishes if wish.serves or not readers[value]]
            if serving and waits_until[value] >= 0:
                form[value] = serving[0]
                if ranks[value] > 0:
                    form[value] = replace(serving[0], held=max(0, serving[0].held - step.aside[value]))

        def stored_at(value):
            first = min([op for op, _ in readers[value]], default=self.producer[value])
            if ranks[value] > 0:
                first = self.producer[value]
            return first if step.stored_at[value] is None else step.stored_at[value]

        def size(of):
            """Of what is there as it is."""
            return sum(step.nbytes[value] for value in of)

        def waiting(of):
            return sum(form[value].held if value in form else step.nbytes[value] for value in of)

        seconds = sum(step.seconds[op] for ops in repeated for op in sorted(ops))
        seconds += sum(form[value].store_seconds * (len(made_at[value]) if ranks[value] else 1) for value in form)
        seconds += sum(form[value].restore_seconds * len(readers[value]) for value in form)

        # What backward restores, at each event that of values that were there before and that of what it repeated; and
        # what one step lends to a later one.
        restored = [[0, 0] for _ in range(self.events)]
        reading = [(self.ops + i, value) for i, row in enumerate(step.backward) for value in row if value in form]
        made = [(at, value) for at, value in reading if form[value].restored]
        lent_until = {}
        for at, value in reading:
            fresh = ranks[value] > 0 and at in made_at[value]
            restored[at][fresh] += form[value].restored
            lent = False
            if form[value].restored:
                place = made.index((at, value))
                lent = place > 0 and made[place - 1][1] == value
                if last[value] > at:
                    lent_until[at, value] = made[place + 1][0] - 1
            seconds += 0 if lent else form[value].restore_seconds

        nbytes, again = [], set()
        for event in range(self.events):
            outside = 0
            for value in values:
                chosen = form.get(value) if ranks[value] == 0 else None
                until = {**waits_until, **{v: -1 for v in values if ranks[v]}}
                if self.alive_outside(value, event, until, None if chosen is None else stored_at(value)):
                    outside += step.nbytes[value]
                if chosen is not None and stored_at(value) <= event <= waits_until[value]:
                    outside += chosen.held + (chosen.passing if stored_at(value) == event else 0)
                if ranks[value] and stored_at(value) <= event <= last[value]:
                    outside += step.aside[value]
            outside += sum(form[v].restored for (at, v), until in lent_until.items() if at < event <= until)
            most = 0
            if event >= self.ops:
                again = {value for value in again if waits_until[value] >= event}
                between = step.other[event] if event == self.ops else min(step.other[event - 1 : event + 1])
                for rank, piece in [key for key, at in replays.items() if at == event]:
                    live, stored = set(), set()
                    for i, op in enumerate(piece):
                        live = (live | set(step.makes[op])) - {step.reuses[value] for value in step.makes[op]}
                        later = {value for o in piece[i + 1 :] for value in step.reads[o]}
                        stays = {v for v in live if ranks[v] == rank and waits_until[v] >= 0}
                        now = {v for v in stays if v in form and v not in later}
                        bytes_now = outside + restored[event][0] + waiting(again) + size(live) + waiting(stored | now)
                        bytes_now += sum(form[v].passing for v in now) + step.scratch[op] + between
                        bytes_now += sum(form[v].restored for v in step.reads[op] if v in form and ranks[v] < rank)
                        most = max(most, bytes_now)
                        stored |= now
                        live = {v for v in live if ranks[v] >= rank and (v in later or (v in stays and v not in now))}
                    again |= live | stored
            scratch = step.scratch[event] if event < self.ops else 0
            there = outside + waiting(again) + sum(restored[event])
            nbytes.append(max(most, there + scratch + step.other[event]))
        return Usage(tuple(nbytes), seconds, tuple(outer), tuple(inner), self.variance(ranks, form))

    def variance(self, ranks, form):
        def own(value):
            return form[value].noise if value in form else 0.0

        def made(value, rank):
            """The noise of a value as a segment of that rank makes it."""
            total = 0.0
            for read in self.step.reads[self.producer[value]]:
                if ranks[read] >= rank:
                    total += made(read, rank)
                else:
                    total += own(read) + (made(read, ranks[read]) if ranks[read] else 0.0)
            return total

        return sum(
            weight * (own(value) + (made(value, ranks[value]) if ranks[value] else 0.0))
            for value, weight in enumerate(self.step.weights)
            if self.read_by_backward(value)
        )

    def plans(self):
        """Each choice without nesting: what is kept, and in which forms all waits."""
        options = [
            [
                (kept, form)
                for kept in ((False, True) if value in self.optional else (True,))
                for form in range(-1, len(menu))
            ]
            for value, menu in enumerate(self.step.forms)
        ]
        for choice in itertools.product(*options):
            yield [kept for kept, _ in choice], [form for _, form in choice]

    def front(self, variance=0.0):
        """The peaks and seconds that no other choice beats."""
        points = set()
        for kept, forms in self.plans():
            noise = [menu[form].noise for menu, form in zip(self.step.forms, forms, strict=True) if form >= 0]
            if variance == 0 and any(noise):
                continue
            usage = self(kept, None, forms)
            if usage.variance <= variance:
                points.add((max(usage.nbytes), usage.seconds))
        best = []
        for peak, seconds in sorted(points):
            # Sums of the same numbers in another order.
            if not best or seconds < best[-1][1] * (1 - 64 * 2**-53):
                best.append((peak, seconds))
        return best
