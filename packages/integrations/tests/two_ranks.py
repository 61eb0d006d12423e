"""Two processes or more that meet in one group, what each prints last, and how each ends."""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist


def run_two_ranks(child: str, meet: Path, timeout: float = 120) -> list:
    """Runs a script of this folder as ranks 0 and 1; see ``run_ranks``."""
    return run_ranks(2, child, meet, timeout)


def run_ranks(count: int, child: str, meet: Path, timeout: float = 120) -> list:
    """Runs a script of this folder as so many ranks, which meet at a file that is not there yet; the JSON of each.

    Args:
        count: how many.
        child: the script.
        meet: the file.
        timeout: seconds for each rank.
        ranks: how many ranks there are, where two are not enough.
    """
    from .forks import Fork  # here, because the scripts import this file by itself

    script = Path(__file__).with_name(child)
    processes = [Fork(script, str(meet), WORLD_SIZE=str(count), RANK=str(rank)) for rank in range(count)]
    found = []
    try:
        for process in processes:
            out, errors = process.communicate(timeout=timeout)
            assert process.returncode == 0, errors
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in processes:  # one waits for the other, which may have failed
            process.kill()
    return found


def run_torchrun(child: str, folder: Path, *options: str) -> None:
    """Has torchrun start a script of this folder as ranks 0 and 1, which write what they find into ``folder``."""
    from .forks import Fork

    torchrun = importlib.util.find_spec("torch.distributed.run").origin
    arguments = ["--standalone", "--nproc-per-node=2", *options, str(Path(__file__).with_name(child)), str(folder)]
    process = Fork(Path(torchrun), *arguments, CUDA_VISIBLE_DEVICES="")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def run_forked_ranks(child: str, folder: Path, *libraries: str) -> None:
    """Starts a script of this folder as ranks 0 and 1, as torchrun does, but imports libraries once for both. Each rank
    writes its results to a file in ``folder``."""
    from .forks import Fork

    here = Path(__file__)
    arguments = [str(here.with_name(child)), str(folder), *libraries]
    process = Fork(here.with_name("forked_ranks.py"), *arguments, CUDA_VISIBLE_DEVICES="")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def leave(found: object = None) -> NoReturn:
    """Ends one of the ranks, which prints what it found.

    Threads of gloo and of autograd outlive the group. One that frees a tensor while the interpreter ends asks for the
    interpreter's lock, is ended by Python, and takes the process with it: "terminate called without an active
    exception". So the interpreter does not end; the process does.
    """
    dist.destroy_process_group()
    if found is not None:
        print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)
