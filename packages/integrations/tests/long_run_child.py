"""A long run in a process of its own, for ``test_long_runs.py``.

``python long_run_child.py memory ROUNDS STEPS SHAPES``: each round plays every scene of ``long_run_scenes.py`` with so
many steps, and what the process holds is counted after it; run with ``PYTHONMALLOC=malloc
MALLOC_MMAP_THRESHOLD_=65536``. ``... noise ROUNDS STEPS SHAPES``: the same, and which noise was drawn. ``... losses
SEEDS EPOCHS``: what a small model learns of digits, compressed and not. Prints one JSON object a line, of
``memory`` one for each round, so that a run that is stopped has told of those before.
"""

import json
import sys
import time

import torch
from counted import held
from drawn import Draws
from long_run_losses import LEVELS, learned
from long_run_scenes import Run, compiled, play


def memory(rounds, steps, shapes):
    """What was held after each round, and the steps."""
    run = Run(steps, shapes)
    for _ in range(4):  # until torch has as many versions of the model in eval() as it makes at all
        play(run, [compiled])
    for _ in range(rounds):
        began = time.perf_counter()
        play(run)
        yield {"steps": run.taken, "seconds": time.perf_counter() - began, **held()}


def leaking(rounds, steps, shapes):
    """The same of a process that keeps something of each kind in each round."""
    import functools
    import threading
    from pathlib import Path

    import integrations

    kept, integrations.leaking, forever = [], [], threading.Event()
    cached = integrations.leaked = functools.cache(lambda number: number)
    for number in range(rounds):
        kept.append((torch.ones(1 << 18), Path(__file__).open(), integrations.Level(bits=4)))  # noqa: SIM115
        integrations.leaking.append(number)
        cached(number)
        threading.Thread(target=forever.wait, daemon=True).start()
        yield {"steps": number, "seconds": 0.0, **held()}


def noise(rounds, steps, shapes):
    """How many pairs of seed and stream were drawn, and which came again."""
    draws = Draws()
    run = Run(steps, shapes)
    run.step = counted(run.step, draws)
    for _ in range(rounds):
        play(run)
    yield {"steps": run.taken, "drawn": draws.count, "repeated": draws.repeated[:20]}


def counted(step, draws):
    """A step that is told to ``draws``."""

    def told(*given):
        draws.moment += 1
        return step(*given)

    return told


def losses(seeds, epochs):
    """The loss at the end by level and seed."""
    yield {level or "plain": [learned(level, seed, epochs) for seed in range(seeds)] for level in (None, *LEVELS)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, *numbers = sys.argv[1:]
    for found in {"memory": memory, "leaking": leaking, "noise": noise, "losses": losses}[what](*map(int, numbers)):
        print(json.dumps(found), flush=True)
