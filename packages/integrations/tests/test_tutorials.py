"""Every tutorial of docs/tutorials runs as it stands, and keeps fewer bytes with compression than without."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from .forks import Fork
from .libraries import library_or_skip

FOLDER = Path(__file__).parents[3] / "docs" / "tutorials"

LIBRARIES = {
    "bert_mrpc": ["transformers"],
    "causal_lm": ["transformers"],
    "ddp_torchrun": [],
    "gnn_cora": ["torch_geometric", "scipy"],
    "lora": ["transformers", "peft"],
    "resnet_cifar10": ["timm"],
}


def run(name, folder, *options):
    """What a tutorial prints, in a quick run."""
    for library in LIBRARIES[name]:
        library_or_skip(library)
    command = [FOLDER / f"{name}.py", "--quick", *options]
    if name == "ddp_torchrun":
        if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
            pytest.skip("this torch has no gloo")
        torchrun = importlib.util.find_spec("torch.distributed.run").origin
        command = [Path(torchrun), "--standalone", "--nproc-per-node=2", *map(str, command)]
    process = Fork(*command, cwd=folder)
    printed, errors = process.communicate(timeout=600)  # so long only if it hangs
    assert process.returncode == 0, errors
    return printed


def kept(printed):
    """Of each pair of runs, the bytes that the plain one and the compressed one kept for backward."""
    lines = re.findall(r"^(as it is|compressed): .* ([\d,]+) bytes kept for backward", printed, re.MULTILINE)
    assert lines
    assert [name for name, _ in lines] == ["as it is", "compressed"] * (len(lines) // 2)
    numbers = [int(number.replace(",", "")) for _, number in lines]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, []) for name in sorted(LIBRARIES)), ("resnet_cifar10", ["--layers", "q"])],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_tutorial(name, options, tmp_path):
    printed = run(name, tmp_path, *options)
    pairs = kept(printed)
    assert len(pairs) == (3 if name == "gnn_cora" else 1)  # one for each network
    for plain, compressed in pairs:
        assert 0 < compressed < plain / 3  # L1 stores a third at most of what these models keep, GAT's edges included
    if name == "ddp_torchrun":
        assert "weights of 2 ranks are the same" in printed
    if options:
        assert re.search(r"Exchanged: \d+ Q-layers", printed)


def test_all_tutorials_are_here_and_on_the_page():
    found = sorted(path.stem for path in FOLDER.glob("*.py"))
    assert found == sorted(LIBRARIES)
    page = (FOLDER.parent / "how-to" / "trainers.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(\.\./tutorials/(\w+)\.py\)", page)) == found
