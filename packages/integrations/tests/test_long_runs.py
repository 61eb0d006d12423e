"""Long runs: nothing grows, no noise comes again, and what is learned is what a plain run learns.

A quick form of each, and with ``ACTCORE_LONG=1`` (``nox -s long_runs``) the long one. The results of the
long form are in ``docs/results/long-runs.md``.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from .long_form import LONG

CHILD = Path(__file__).with_name("long_run_child.py")

# The numbers of each kind of run, as the child takes them. The long form has more shapes than any cache has entries,
# and 20,000 steps. The quick one lets torch compile less, so that it is done with that in the first round.
VERSIONS = 8 if LONG else 2  # of one code that dynamo keeps
SEEDS, EPOCHS = (10, 100) if LONG else (3, 4)
MEMORY = (15, 122, 14112, VERSIONS) if LONG else (3, 2, 12, VERSIONS)
NOISE = MEMORY[:3] if LONG else (1, 6, 30)
RUNS = {"memory": MEMORY, "losses": (SEEDS, EPOCHS), "noise": NOISE, "leaking": (2,)}
WARM = 5 if LONG else 2  # rounds after which every cache that has a bound is as full as it gets
GROWTH = 1 << 20


def run(runs):
    """What the child prints of each kind, line by line."""
    words = [str(word) for kind, numbers in runs.items() for word in (kind, *numbers)]
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(CHILD), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=7200 if LONG else 240)
    if folder := os.environ.get("ACTCORE_LONG_RESULTS"):
        Path(folder, f"{'_'.join(runs)}.jsonl").write_text(done.stdout, "utf-8")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {kind: [line for line in lines if line["kind"] == kind] for kind in runs}


@pytest.fixture(scope="module")
def told():
    """What the child prints of one kind. In the quick form all runs are of one process, which takes longer to start
    than most of them."""
    known = {}

    def of(kind):
        if kind not in known:
            known.update(run({kind: RUNS[kind]} if LONG else RUNS))
        return known[kind]

    return of


def grown(rounds, warm):
    """What the last round has more of than the rounds that warm up have had at most, in words. An entry more in a cache
    that has a bound is no growth; one without a bound may hold no more than it held."""
    before, last = rounds[:warm], rounds[-1]
    found = []
    for kind in ("registries", "caches", "objects", "opened"):
        for name, count in last[kind].items():
            bound = last["cache bounds"].get(name) if kind == "caches" else None
            most = max(one[kind].get(name, 0) for one in before) if bound is None else bound
            if count > most and name not in BY_CACHES:
                found.append(f"{kind}: {name} {most} -> {count}")
    return found


# Objects that are nothing but entries of caches with a bound, which fill as shapes and options come by.
BY_CACHES = frozenset(
    {
        "integrations.policies.norms.Standardized",  # of integrations.policies.standardizing._gains
        "integrations.policies.levels.Level",  # of integrations.tracing.storage.storage_policy and the hooks of levels
    }
)


@pytest.fixture(scope="module")
def rounds(told):
    return told("memory")


def test_a_long_run_holds_no_more_than_a_short_one(rounds):
    assert grown(rounds, WARM) == []


def test_bytes_in_use_do_not_grow(rounds):
    warm, *later = [one["bytes"] for one in rounds[WARM - 1 :]]
    assert max(later) - warm <= GROWTH


def test_dynamo_keeps_no_more_versions_than_torch_allows(rounds):
    """Of the model in eval(), which torch compiles anew when the model is compressed again."""
    assert max(one["dynamo"]["compiled versions"] for one in rounds) <= VERSIONS


def test_caches_without_a_bound_have_few_keys(rounds):
    """Those hold facts of operators, dtypes or this machine: no shape, level or seed is a key of one."""
    last = rounds[-1]
    unbounded = {name: count for name, count in last["caches"].items() if last["cache bounds"][name] is None}
    assert unbounded
    assert max(unbounded.values()) < 100


def test_growth_of_each_kind_is_seen(told):
    """The rounds of a process that keeps a tensor, a file, a level, an entry of a list and of a cache, and a thread."""
    leaks = told("leaking")
    found = " ".join(grown(leaks, 1))
    for name in ("registries: integrations.leaking", "caches", "files", "threads"):
        assert name in found
    assert leaks[-1]["bytes"] - leaks[0]["bytes"] > GROWTH
    assert (
        leaks[-1]["objects"]["integrations.policies.levels.Level"]
        > leaks[0]["objects"]["integrations.policies.levels.Level"]
    )


def test_noise_never_comes_again(told):
    [found] = told("noise")
    assert found["drawn"] > 5 * found["steps"]  # the scenes save some tensors each, and levels that are off none
    assert found["repeated"] == []


def test_what_is_learned_is_what_a_plain_run_learns(told):
    """The mean over seeds of the paired difference is within the scatter, the standard deviation, of the plain runs.

    Runs of one seed share weights and the order of batches, so that their difference is of the compression alone.
    """
    [losses] = told("losses")
    plain, compressed = losses["plain"], {level: losses[level] for level in ("L1", "lean")}
    scatter = statistics.stdev(plain)
    assert max(plain) < 0.5  # of the 2.3 that guessing has: something was learned
    for level, found in compressed.items():
        differences = [one - other for one, other in zip(found, plain, strict=True)]
        assert any(differences), level
        assert abs(statistics.mean(differences)) < scatter, level
