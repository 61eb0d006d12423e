"""The first example of each page of docs/ and of the README runs as it stands there."""

import re
from pathlib import Path

import matplotlib
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from integrations import fewbit

from .libraries import library_or_skip
from .nets import normal

ROOT = Path(__file__).parents[3]
TESTED_ELSEWHERE = {"extend.md"}  # by bench's test_extend.py, whole


def first_example(page):
    found = re.search(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return found and found.group(1)


def example_below(page, heading):
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.search(rf"^## {heading}\n.*?^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL).group(1)


def mlp():
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10)).train()


def two_steps(names):
    """What a page leaves out where it says "train as before"."""
    model, batch = names["model"], names["batch"]
    for _ in range(2):
        model.zero_grad()
        output = model(**batch) if isinstance(batch, dict) else model(batch)
        loss = output.loss if hasattr(output, "loss") else F.cross_entropy(output, names["y"])
        loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


# ---- what each page takes for granted ----


def of_vectors():
    x = normal(32, 64)
    return {"model": mlp(), "batch": x, "images": x, "x": x, "y": torch.arange(32) % 10, "nn": nn}


def compressed():
    names = of_vectors()
    integrations.compress_model(names["model"], level="L1")
    two_steps(names)
    return {**names, "integrations": integrations}


def with_integrations():
    return {**of_vectors(), "integrations": integrations}


def of_images():
    timm = library_or_skip("timm")
    model = timm.create_model("resnet10t", num_classes=10).train()
    return {"model": model, "batch": normal(8, 3, 32, 32), "y": torch.arange(8) % 10}


def convolutions():
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    return {"model": nn.Sequential(*layers).train(), "batch": normal(8, 3, 16, 16), "y": torch.arange(8) % 10}


def of_tokens():
    transformers = library_or_skip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=2, use_cache=False)
    ids = torch.randint(0, 128, (8, 32), generator=torch.Generator().manual_seed(0))
    return {"model": transformers.GPT2LMHeadModel(config).train(), "batch": {"input_ids": ids, "labels": ids}}


def trained():
    transformers = library_or_skip("transformers")
    library_or_skip("accelerate")
    names = of_tokens()
    data = [{"input_ids": row, "labels": row} for row in names["batch"]["input_ids"]]
    arguments = transformers.TrainingArguments(
        "trained", max_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True, save_strategy="no"
    )
    return {**names, "Trainer": transformers.Trainer, "arguments": arguments, "data": data}


def adapted():
    library_or_skip("peft")
    return of_tokens()


def one_rank():
    """A process group of this process alone, which the test destroys."""
    if not torch.distributed.is_available():
        pytest.skip("torch was built without torch.distributed")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    return of_vectors()


def forecast_inputs():
    names = of_tokens()
    return {"model": names["model"], "inputs": names["batch"]}


def few_bits():
    return {**of_vectors(), "fewbit": fewbit}


def a_linear_layer():
    return {"linear": nn.Linear(768, 3072)}


PAGES = {
    "README.md": dict,
    "docs/explanation/architecture.md": with_integrations,
    "docs/explanation/error.md": of_vectors,
    "docs/explanation/how-tensors-are-stored.md": of_vectors,
    "docs/explanation/native-core.md": dict,
    "docs/explanation/plans.md": of_vectors,
    "docs/explanation/runtime.md": with_integrations,
    "docs/how-to/checkpointing.md": of_vectors,
    "docs/how-to/debug.md": compressed,
    "docs/how-to/distributed.md": one_rank,
    "docs/how-to/drop-in-layers.md": convolutions,
    "docs/how-to/fit-into-memory.md": of_vectors,
    "docs/how-to/forecast.md": forecast_inputs,
    "docs/how-to/language-models.md": of_tokens,
    "docs/how-to/limit-the-error.md": of_vectors,
    "docs/how-to/lora.md": adapted,
    "docs/how-to/offload.md": of_vectors,
    "docs/how-to/report.md": compressed,
    "docs/how-to/resume.md": of_vectors,
    "docs/how-to/torch-compile.md": of_vectors,
    "docs/how-to/trainers.md": trained,
    "docs/index.md": of_images,
    "docs/reference/actcore.md": dict,
    "docs/reference/compress_model.md": of_vectors,
    "docs/reference/few-bit.md": few_bits,
    "docs/reference/levels.md": with_integrations,
    "docs/reference/operators.md": dict,
    "docs/reference/q-layers.md": convolutions,
    "docs/reference/randomized-linear.md": a_linear_layer,
    "docs/start.md": dict,
}


@pytest.mark.parametrize("page", PAGES)
def test_the_first_example(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    matplotlib.use("agg")
    torch.manual_seed(0)
    names = PAGES[page]()
    names["two_steps"] = lambda: two_steps(names)
    code = re.sub(r"^\.\.\.(?=  # train)", "two_steps()", first_example(page), flags=re.MULTILINE)
    try:
        exec(compile(code, page, "exec"), names)
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            names.clear()  # DistributedDataParallel holds the group
            torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("heading", "library"),
    [
        ("Compress a model", "torch"),
        ("A language model", "transformers"),
        ("A vision model", "timm"),
        ("A graph network", "torch_geometric"),
    ],
)
def test_the_examples_of_the_first_page(heading, library):
    library_or_skip(library)
    code = example_below("docs/start.md", heading)
    torch.manual_seed(0)
    names = {}
    exec(compile(code, heading, "exec"), names)
    assert integrations.compression(names["model"]).report().ratio > 1


def test_the_loop_of_the_page_of_trainers():
    heading, names = "Loops of your own", {}
    code = example_below("docs/how-to/trainers.md", heading)
    torch.manual_seed(0)
    exec(compile(code, heading, "exec"), names)
    assert integrations.compression(names["model"]).report().ratio > 1.5


def test_the_example_of_tensor_parallel():
    """On one rank of a CPU, where the page has GPUs."""
    heading, names = "Tensor and sequence parallel", {**one_rank(), "torch": torch, "integrations": integrations}
    code = example_below("docs/how-to/distributed.md", heading)
    try:
        exec(compile(code.replace('"cuda"', '"cpu"'), heading, "exec"), names)
        two_steps(names)
        assert {type(one).__name__ for one in names["model"][0].parameters()} == {"DTensor"}
        assert integrations.compression(names["model"]).report().ratio > 1.5
    finally:
        names.clear()
        torch.distributed.destroy_process_group()


def test_all_pages_with_an_example_are_here():
    pages = {path for path in ROOT.glob("docs/**/*.md") if path.name not in TESTED_ELSEWHERE}
    pages -= set(ROOT.glob("docs/results/*.md"))
    with_example = {str(page.relative_to(ROOT).as_posix()) for page in pages if first_example(page.relative_to(ROOT))}
    assert with_example | {"README.md"} == set(PAGES)
