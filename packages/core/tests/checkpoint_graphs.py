"""Graphs and training steps of the sizes that networks have, and small ones at random, for the checkpoint solvers."""

import itertools
import random
from dataclasses import replace

from actcore import Form, TrainingStep


class Graph:
    """Tensors with their sizes, and an edge from each that an operator reads to the one that it makes."""

    def __init__(self):
        self.nbytes, self.edges = [0], []

    def add(self, size, *sources):
        self.edges += [(source, len(self.nbytes)) for source in sources]
        self.nbytes.append(size)
        return len(self.nbytes) - 1

    def numbers(self):
        return self.nbytes, self.edges


def residual_graph(blocks):
    """ResNet with bottlenecks: (3, 4, 6, 3) for ResNet-50, (3, 8, 36, 3) for ResNet-152. Sizes at 224 x 224."""
    graph, pixels = Graph(), 56 * 56
    x = graph.add(64 * pixels, graph.add(256 * pixels, graph.add(256 * pixels, 0)))
    for stage, count in enumerate(blocks):
        width, size = 64 << stage, pixels >> 2 * stage
        for block in range(count):
            h = x
            for _ in range(2):
                h = graph.add(width * size * (4 if stage and not block else 1), h)
            h = graph.add(4 * width * size, graph.add(width * size, graph.add(width * size, h)))
            x = graph.add(4 * width * size, h, x)
    graph.add(0, graph.add(2048, x))
    return graph.numbers()


def dense_graph(blocks, growth=32):
    """DenseNet, with a concatenation for each layer: (6, 12, 24, 16) for 121 layers, (6, 12, 48, 32) for 201."""
    graph, pixels, width = Graph(), 56 * 56, 64
    x = graph.add(64 * pixels, graph.add(256 * pixels, graph.add(256 * pixels, 0)))
    for stage, count in enumerate(blocks):
        for _ in range(count):
            h = graph.add(width * pixels, x)
            h = graph.add(4 * growth * pixels, graph.add(4 * growth * pixels, h))
            h = graph.add(growth * pixels, h)
            width += growth
            x = graph.add(width * pixels, x, h)
        if stage < len(blocks) - 1:
            h = graph.add(width * pixels, x)
            width, pixels = width // 2, pixels // 4
            x = graph.add(width * pixels, graph.add(4 * width * pixels, h))
    graph.add(0, graph.add(width, x))
    return graph.numbers()


def cell_graph(cells=20, width=36):
    """NASNet's shape: cells of five pairs of branches, each cell reading the two before it."""
    graph, size = Graph(), 32 * 32 * width

    def chain(x, length):
        for _ in range(length):
            x = graph.add(size, x)
        return x

    before = now = chain(0, 1)
    for cell in range(cells):
        if cell in (cells // 3, 2 * cells // 3):
            size //= 2
        a, b = chain(before, 3), chain(now, 3)
        pairs = ((a, 7, b, 7), (a, 7, a, 7), (b, 1, a, 0), (a, 1, a, 1), (b, 7, b, 0))
        outputs = [graph.add(size, chain(left, i), chain(right, j)) for left, i, right, j in pairs]
        before, now = now, graph.add(6 * size, *outputs, a)
    graph.add(0, now)
    return graph.numbers()


def small_graph(seed):
    """At most 10 tensors, of which the first and the last are the graph's input and result."""
    draw = random.Random(seed)
    kind = ("chain", "residual", "branched", "random")[seed % 4]
    inner = draw.randint(3, 8)
    last = inner + 1
    nbytes = [0, *(draw.choice((draw.randint(1, 9), draw.randint(1, 100))) for _ in range(inner)), 0]
    edges = [(i, i + 1) for i in range(last)]
    if kind == "residual":
        start = 0
        while start + 2 <= last:
            end = start + draw.randint(2, 3)
            if end <= last:
                edges.append((start, end))
            start = end
    elif kind == "branched":
        first = draw.randint(1, inner - 1)
        left, right = [0, *range(1, first + 1), last], [0, *range(first + 1, last), last]
        edges = [*itertools.pairwise(left), *itertools.pairwise(right)]
    elif kind == "random":
        density = draw.choice((0.2, 0.4, 0.7))
        edges = []
        for tensor in range(1, last + 1):
            sources = [source for source in range(tensor) if draw.random() < density] or [draw.randrange(tensor)]
            edges += [(source, tensor) for source in sources]
    return kind, nbytes, edges


class Network:
    """A forward pass operator by operator; backward reads in the opposite order what each operator has saved."""

    def __init__(self):
        self.nbytes, self.reads, self.makes, self.seconds, self.saved, self.gradients = [], [], [], [], [], []

    def add(self, size, sources=(), seconds=1.0, saves=(), saves_result=False, small=0):
        result = len(self.nbytes)
        self.nbytes.append(size)
        self.makes.append([result])
        self.saved.append([*saves, result] if saves_result else list(saves))
        if small:
            self.nbytes.append(small)
            self.makes[-1].append(result + 1)
            self.saved[-1].append(result + 1)
        self.reads.append(list(sources))
        self.seconds.append(seconds)
        self.gradients.append(size + sum(self.nbytes[source] for source in sources))
        return result

    def convolve(self, x, size, seconds):
        return self.add(size, [x], seconds, saves=[x])

    def normalise(self, x):
        return self.add(self.nbytes[x], [x], 2e-4 * self.nbytes[x], saves=[x], small=256)

    def rectify(self, x):
        return self.add(self.nbytes[x], [x], 2e-4 * self.nbytes[x], saves_result=True)

    def join(self, a, b):
        return self.add(self.nbytes[a], [a, b], 3e-4 * self.nbytes[a])

    def step(self):
        ops = len(self.reads)
        until = [None] * len(self.nbytes)
        until[self.makes[-1][0]] = 2 * ops - 1
        return TrainingStep(
            nbytes=self.nbytes,
            reads=self.reads,
            makes=self.makes,
            seconds=self.seconds,
            backward=self.saved[::-1],
            other=[0] * ops + self.gradients[::-1],
            until=until,
        )


def residual_step(blocks):
    """ResNet with bottlenecks, with what its backward reads."""
    net, pixels = Network(), 56 * 56
    x = net.rectify(net.normalise(net.add(256 * pixels, (), 40.0 * pixels)))
    x = net.add(64 * pixels, [x], 0.1 * pixels, saves=[x], small=128 * pixels)
    for stage, count in enumerate(blocks):
        width, size = 64 << stage, pixels >> 2 * stage
        for block in range(count):
            grown = width * size * (4 if stage and not block else 1)
            h = net.rectify(net.normalise(net.convolve(x, grown, grown * width * 4e-3)))
            h = net.rectify(net.normalise(net.convolve(h, width * size, width * size * width * 9e-3)))
            h = net.normalise(net.convolve(h, 4 * width * size, 4 * width * size * width * 1e-3))
            if not block:
                x = net.normalise(net.convolve(x, 4 * width * size, 4 * width * size * width * 2e-3))
            x = net.rectify(net.join(h, x))
    net.add(1000, [x], 1.0, saves=[x])
    return net.step()


def random_network(seed, ops=14):
    """Convolutions, activations that save what they make, and sums: too many choices for small searches."""
    draw, net = random.Random(seed), Network()
    x = skip = net.add(draw.randint(5, 60))
    while len(net.reads) < ops:
        kind = draw.random()
        if kind < 0.5:
            x = net.convolve(x, draw.randint(5, 60), 20 * draw.random())
        elif kind < 0.7:
            x = net.rectify(x)
        elif kind < 0.85:
            x = skip = net.join(x, skip) if skip != x else net.rectify(x)
        else:
            x = net.normalise(x)
    return net.step()


def random_step(seed, most_ops=6):
    """Operators and readers at random, some of them in place, not repeatable, of zero bytes, or held by the caller."""
    draw = random.Random(seed)
    ops = draw.randint(1, most_ops)
    nbytes, reuses, reads, makes = [], [], [], []
    for _ in range(ops):
        there = [value for value in range(len(nbytes)) if value not in reuses]
        read = sorted(draw.sample(there, min(len(there), draw.choice((0, 1, 1, 2)))))
        made = []
        for _ in range(draw.choice((1, 1, 1, 2))):
            made.append(len(nbytes))
            overwrites = draw.choice(read) if len(made) == 1 and read and draw.random() < 0.2 else None
            reuses.append(overwrites)
            size = draw.choice((0, draw.randint(1, 9), draw.randint(1, 99)))
            nbytes.append(size if overwrites is None else nbytes[overwrites])
        reads.append(read)
        makes.append(made)
    there = [value for value in range(len(nbytes)) if value not in reuses]
    backward = []
    for _ in range(draw.randint(1, ops + 1)):
        read = draw.sample(there, min(len(there), draw.choice((0, 1, 2, 3))))
        backward.append(read)
    events = ops + len(backward)
    until = [None] * len(nbytes)
    for value in there:
        if draw.random() < 0.15:
            until[value] = draw.choice((events - 1, draw.randrange(events)))
    return TrainingStep(
        nbytes=nbytes,
        reads=reads,
        makes=makes,
        seconds=[draw.choice((0.0, 1.0, 9 * draw.random())) for _ in range(ops)],
        backward=backward,
        other=[draw.choice((0, draw.randint(0, 50))) for _ in range(events)],
        repeatable=[draw.random() < 0.85 for _ in range(ops)],
        scratch=[draw.choice((0, draw.randint(0, 20))) for _ in range(ops)],
        reuses=reuses,
        until=until,
    )


def random_form(draw, size):
    """Mostly smaller than the value; some have no noise, restore nothing, or are of no use to repetitions."""
    return Form(
        held=draw.randint(0, max(1, size * 2 // 3)),
        restored=draw.choice((0, size, size, draw.randint(0, size))),
        passing=draw.choice((0, draw.randint(0, 30))),
        store_seconds=draw.choice((0.0, 2 * draw.random())),
        restore_seconds=draw.choice((0.0, 2 * draw.random())),
        noise=draw.choice((0.0, 0.01, 0.01 * draw.random())),
        serves=draw.random() < 0.75,
    )


def with_forms(step, seed, most=3, formed=0.0):
    """The step, with forms, weights, bytes aside, and times of storing at random."""
    draw = random.Random(seed)
    ops = len(step.reads)
    made_by = {value: op for op, made in enumerate(step.makes) for value in made}
    forms = [[random_form(draw, size) for _ in range(draw.randint(0, most))] for size in step.nbytes]
    return replace(
        step,
        forms=forms,
        formed=[bool(menu) and draw.random() < formed for menu in forms],
        weights=[draw.choice((0.0, 1.0, 3 * draw.random())) for _ in step.nbytes],
        aside=[draw.choice((0, 0, draw.randint(0, 9))) for _ in step.nbytes],
        stored_at=[draw.choice((None, draw.randrange(made_by[value], ops))) for value in range(len(step.nbytes))],
    )
