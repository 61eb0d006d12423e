"""``python -m integrations``: the commands of the package."""

from integrations.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
