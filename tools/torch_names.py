"""Records which of torch's private names the torch at hand has, for the table of ``python -m integrations doctor``.

    python tools/torch_names.py

Run it with each version of torch; a version that is recorded already is recorded anew. It takes torch alone: nothing of
actcore and nothing else of integrations is imported, so that any environment with a torch will do, such as one that
cannot compute.
"""

import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "packages" / "integrations" / "src" / "integrations"


def main() -> None:
    """Writes the record."""
    package = ModuleType("integrations")  # in the place of the real one, whose __init__ imports all of it
    package.__path__ = [str(PACKAGE)]
    sys.modules["integrations"] = package
    import torch

    from integrations._utils import torch_versions
    from integrations._utils.torch_internals import NAMES

    version = torch.__version__.partition("+")[0]
    found = {path: name.is_there for path, name in NAMES.items()}
    torch_versions.FILE.write_text(torch_versions.content_with(version, found), encoding="utf-8")
    print(f"torch {version} has {sum(found.values())} of {len(found)} names")
    for path, is_there in found.items():
        if not is_there:
            print(f"  it lacks {path}")


main()
