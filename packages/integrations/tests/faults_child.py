"""Has torch's allocator fail in steps of each way, one allocation after the other. Prints what was found, as JSON.

It runs under ``failing_allocator.c``. Its arguments are how many places of a step are tried in the quick form, and
ways.
"""

import ctypes
import json
import sys
import warnings

import torch

from integrations._utils.out_of_memory import is_out_of_memory

from .fault_ways import WAYS, step
from .faults import Trial, counting_alone, places

WARM = 3  # steps after which a forward repeats what the ones before have decided, and a plan is followed
library = ctypes.CDLL(None)


class Failing:
    def __init__(self, place=0):
        self.place = place

    def __enter__(self):
        library.fail_at(self.place)

    def __exit__(self, *error):
        library.fail_at(0)


def made(way, warm):
    model = WAYS[way]().train()
    for _ in range(warm):
        step(model)
    return model


def failures_later(way, quick):
    """Failures in a step that repeats earlier ones, mostly in C, or follows a plan."""
    model, twin = made(way, WARM), made(way, WARM)
    with Failing():
        step(model)
        count = library.allocations()
    step(twin)
    trial, reached = Trial(model, twin), 0
    with counting_alone():
        for place in (tried := places(count, quick)):
            reached += trial.fail(place, Failing(place), is_out_of_memory) is not None
            trial.go_on(place)
    return {"tried": len(tried), "reached": reached, "told": trial.told}


def failures_first(way, quick):
    """Failures in the first step, in which everything is decided, and a plan is made."""
    with Failing():
        made(way, 1)
        count = library.allocations()
    told, reached = [], 0
    for place in (tried := places(count, quick)):
        trial = Trial(made(way, 0), made(way, 0))
        trial.compares = way != "memory"  # where measuring the plan failed, it is another one, which rounds otherwise
        with counting_alone():
            reached += trial.fail(place, Failing(place), is_out_of_memory) is not None
            trial.go_on(place)
        told += trial.told
    return {"tried": len(tried), "reached": reached, "told": told}


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # what the ways warn of is the subject of other tests
    quick, *ways = sys.argv[1:]
    found = {}
    for way in ways:
        found[way] = {"later": failures_later(way, int(quick)), "first": failures_first(way, int(quick))}
        print(json.dumps(found), flush=True)
