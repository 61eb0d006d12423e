"""``python -m integrations.fewbit``: fits, draws, writes and checks step tables."""

from integrations.fewbit.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
