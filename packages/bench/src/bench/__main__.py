"""``python -m bench``."""

from __future__ import annotations

import sys
import warnings


def _run() -> int:
    # torch.jit.script is deprecated, and importing torch-geometric uses it: no news to whoever runs a benchmark.
    warnings.filterwarnings("ignore", message=".*torch.jit.script.*")
    from bench.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(_run())
