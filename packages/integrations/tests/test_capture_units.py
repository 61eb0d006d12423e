"""Captures of models that ``fully_shard`` has sharded, alone and with tensor parallelism: what gradients take."""

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu

from integrations.capture.units import find_parameters, is_sharded
from integrations.checkpoint import capture
from integrations.planner.sensitivity.one_step import OneStep, Unmeasured

if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

BLOCKS, WIDTH, INNER = 3, 32, 128
MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def mesh():
    """Makes this process the last of four ranks. The other three do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=3, world_size=4)
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tp"))
    torch.distributed.destroy_process_group()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        return x + self.down(gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, repeats=1):
        super().__init__()
        self.words = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head, self.repeats = nn.Linear(WIDTH, 11), repeats

    def forward(self, tokens):
        x = self.words(tokens)
        for block in (*self.blocks,) * self.repeats:
            x = block(x)
        return self.head(x)


STYLES = {
    "tensor": {"up": ColwiseParallel, "down": RowwiseParallel},
    "sequence": {
        "norm": SequenceParallel,
        "up": lambda: ColwiseParallel(input_layouts=Shard(1)),
        "down": lambda: RowwiseParallel(output_layouts=Shard(1)),
    },
}
AROUND = {
    "words": lambda: RowwiseParallel(input_layouts=torch.distributed.tensor.Replicate(), output_layouts=Shard(1)),
    "head": lambda: ColwiseParallel(input_layouts=Shard(1)),
}


def parallel(mesh, way, **options):
    model = Net(**options).train()
    if way:
        styles = {f"blocks.{number}.{name}": make() for number in range(BLOCKS) for name, make in STYLES[way].items()}
        styles |= {name: make() for name, make in AROUND.items()} if way == "sequence" else {}
        parallelize_module(model, mesh["tp"], styles)
    return model


def cut(model, mesh, **options):
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"], **options)
    return fully_shard(model, mesh=mesh["data"], **options)


def tokens():
    return torch.arange(16 * 8).view(16, 8) % 11


def nbytes(module):
    """The bytes of this rank's parts of parameters."""
    local = (one.to_local() if isinstance(one, DTensor) else one for one in module.parameters())
    return sum(one.nbytes for one in local)


@pytest.mark.parametrize("way", [None, "tensor", "sequence"])
def test_the_graph_is_that_of_the_model_before_but_for_gradients(mesh, way):
    before, after = (capture(model, tokens()) for model in (parallel(mesh, way), cut(parallel(mesh, way), mesh)))
    assert after.note == ""
    assert before.values == after.values
    assert [(op.name, op.module, op.shapes) for op in before.ops] == [
        (op.name, op.module, op.shapes) for op in after.ops
    ]
    assert sum(op.repeatable for op in after.ops) < sum(op.repeatable for op in before.ops)


@pytest.mark.parametrize("way", [None, "tensor", "sequence"])
def test_whole_gradients_are_there_until_their_unit_is_over(mesh, way):
    """Then a rank keeps its shards."""
    whole = parallel(mesh, way)
    unit, rest = nbytes(whole.blocks[0]), nbytes(whole) - nbytes(whole.blocks)
    model = cut(parallel(mesh, way), mesh)
    graph = capture(model, tokens())
    assert graph.gradients == nbytes(model)
    shard = nbytes(model.blocks[0])
    assert 0 < shard < unit
    assert sorted(set(graph.standing)) == [number * shard for number in range(BLOCKS + 1)]
    assert graph.other[-1] >= BLOCKS * shard + rest
    # The last block's are whole beside the shards of the others, and the root's, some of which are made first.
    before = max(other for other, there in zip(graph.other, graph.standing, strict=True) if there < BLOCKS * shard)
    assert before >= (BLOCKS - 1) * shard + unit
    assert graph.accumulating.other[-1] == graph.other[-1] - BLOCKS * shard


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_unit_that_is_called_twice_keeps_one_shard(mesh, repeats):
    graph = capture(cut(parallel(mesh, None, repeats=repeats), mesh), tokens())
    assert max(graph.standing) == BLOCKS * graph.standing[next(i for i, there in enumerate(graph.standing) if there)]


def test_a_group_of_units_is_over_when_its_first_is(mesh):
    model = Net().train()
    for block in model.blocks:
        fully_shard([block.norm, block.up, block.down], mesh=mesh["data"])
    graph = capture(fully_shard(model, mesh=mesh["data"]), tokens())
    assert graph.gradients == nbytes(model)
    assert sorted(set(graph.standing)) == [number * nbytes(model.blocks[0]) for number in range(BLOCKS + 1)]


@pytest.mark.parametrize("way", ["tensor", "sequence"])
def test_mixed_precision(mesh, way):
    """Values have half of the bytes, and shards of gradients as many as those of parameters."""
    whole, mixed = (capture(cut(parallel(mesh, way), mesh, **how), tokens()) for how in ({}, {"mp_policy": MIXED}))
    assert len(whole.values) == len(mixed.values)
    assert [value.nbytes for value in whole.values if value.saved >= 0][-1] == 2 * [
        value.nbytes for value in mixed.values if value.saved >= 0
    ][-1]
    assert mixed.gradients == whole.gradients


def test_parameters_are_found_whether_or_not_they_are_gathered(mesh):
    model = cut(parallel(mesh, "tensor"), mesh)
    assert is_sharded(model)
    assert {id(one.parameter) for one in find_parameters(model)} == set(map(id, model.parameters()))
    for unit in (model, *model.blocks):
        unit.unshard()
    assert not is_sharded(model)
    assert {id(one.parameter) for one in find_parameters(model)} == set(map(id, model.parameters()))
    assert not is_sharded(Net())


def test_a_step_aside_of_units_raises(mesh):
    """Units whose parameters are gathered, as between the micro-batches of a pipeline, would keep its gradients."""
    model = cut(Net(), mesh)
    step = OneStep(model, (tokens(),))
    for gather in (lambda unit: None, lambda unit: unit.unshard()):
        for unit in (model, *model.blocks):
            gather(unit)
        with pytest.raises(Unmeasured, match="fully_shard has sharded the model's parameters"):
            step.gradients()
