"""Two processes that meet in one group, and what each prints last."""

import json
import os
import subprocess
import sys
from pathlib import Path


def run_two_ranks(child: str, meet: Path) -> list:
    """Runs a script of this folder as ranks 0 and 1, which meet at a file that is not there yet; the JSON of each."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(child)), str(meet)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    found = []
    try:
        for process in processes:
            out, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in processes:  # one waits for the other, which may have failed
            process.kill()
            process.wait()
    return found
