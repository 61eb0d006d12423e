"""``python -m actcore``: prints what was built and checks every operator on every device present."""

from __future__ import annotations

import sys

from actcore.info import build_info, check_operators, devices, unusable_gpu


def main() -> int:
    """Prints the facts and the checks; returns 1 if an operator disagrees with the reference."""
    for name, value in build_info().items():
        text = ", ".join(value) if isinstance(value, list) else str(value)
        print(f"{name:22} {text or '-'}")
    if reason := unusable_gpu():
        print(f"cuda {reason}")
    failed = False
    for device in devices():
        for operator, agrees in check_operators(device):
            failed |= not agrees
            print(f"{device.type:4} {operator:40} {'ok' if agrees else 'DISAGREES WITH THE REFERENCE'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
