"""Starts a script as ranks 0 and 1, with the environment that torchrun gives them. The ranks are forks of a process
that has imported the libraries that both need.

Run as ``python forked_ranks.py SCRIPT FOLDER [LIBRARY ...]``; libraries that are not installed are left out.
"""

import gc
import importlib
import os
import runpy
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path

RANKS = 2


def run_rank(rank, port, script, folder):
    """Runs the script in this process, which ends."""
    of_torchrun = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
    of_torchrun |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "forked"}
    os.environ.update({name: str(value) for name, value in of_torchrun.items()})
    sys.argv = [script, folder]
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)  # a script that succeeds has ended the process


def find_port():
    with socket.socket() as any_free:
        any_free.bind(("localhost", 0))
        return any_free.getsockname()[1]


def main(script, folder, *libraries):
    sys.path.insert(0, str(Path(script).parent))
    for library in libraries:
        with suppress(ImportError):
            importlib.import_module(library)
    gc.collect()
    gc.freeze()  # so that collections in ranks leave out, and do not copy, what was imported here
    port, waiting = find_port(), set()
    for rank in range(RANKS):
        if process := os.fork():
            waiting.add(process)
        else:
            run_rank(rank, port, script, folder)
    failed = False
    while waiting:
        process, status = os.wait()
        waiting.discard(process)
        if status and not failed:
            failed = True
            for other in waiting:  # which wait for this one
                os.kill(other, signal.SIGKILL)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
