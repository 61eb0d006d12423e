"""The peak of a plan for CUDA equals that of the step, with the memory of kernels. No GPU is needed."""

import json
from pathlib import Path

import pytest
import torch

import integrations
from integrations._utils.torch_internals import FakeTensorMode
from integrations.capture.costs.cuda_scratch import kernel_scratch_bytes
from integrations.capture.costs.operator_costs import count_scratch
from integrations.losses import _operator
from integrations.losses._chunks import rows_of_chunk
from integrations.losses.head import chunk_logits

from . import fake_gpu
from .libraries import library_or_skip

aten = torch.ops.aten
RECORD = Path(__file__).parents[2] / "bench" / "results" / "systems-cuda.json"
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's own figures are measured elsewhere")
EXACT = ("recompute", "exact")


@pytest.fixture
def fake_cuda(monkeypatch):
    fake_gpu.set_up(monkeypatch)


def cuda(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="cuda")


@pytest.fixture(scope="module")
def recorded():
    """Return the largest workspace of each operator in a step on an H100, by the operator's name."""
    figures = [entry.get("figures") or {} for entry in json.loads(RECORD.read_text())["entries"]]
    return {one["workspace_of"]: one["workspace_bytes"] for one in figures if one.get("workspace_of")}


def test_a_sum_over_rows_takes_what_was_recorded(recorded):
    """Recorded in a ViT-B with 64 images: the gradient of the bias of query, key and value."""
    with FakeTensorMode():
        gradient = cuda(64 * 197, 3 * 768)
        found = kernel_scratch_bytes(aten.sum.dim_IntList, (gradient, [0], True), (gradient[:1],))
    assert found == recorded["aten.sum.dim_IntList"]


def test_attention_takes_what_was_recorded(recorded):
    """Recorded in a Llama with 32 query heads of 64 elements, 8 key heads and 2048 tokens."""
    with FakeTensorMode():
        query, key = cuda(1, 32, 2048, 64), cuda(1, 8, 2048, 64)
        args = query, query, key, key, query
        found = kernel_scratch_bytes(aten._scaled_dot_product_cudnn_attention_backward.default, args, (query, key, key))
    assert found == recorded["aten._scaled_dot_product_cudnn_attention_backward.default"]


@pytest.mark.parametrize(
    ("function", "args", "nbytes"),
    [
        (aten.sum.dim_IntList, lambda: (cuda(8192, 64), [1]), 0),  # rows of a block of threads each
        (aten.sum.dim_IntList, lambda: (cuda(16, 768), [0]), 0),  # few rows: one block has them all
        (aten.sum.dim_IntList, lambda: (cuda(0, 768), [0]), 0),
        (aten.max.other, lambda: (cuda(8192, 64), cuda(64)), 0),
        # Truth values are cast to whole numbers first; 512 bytes for the sums of all blocks, and for their counters.
        (aten.sum.default, lambda: (cuda(1 << 12, dtype=torch.bool),), 8 << 12),
        # A number for each of 528 blocks, four on each multiprocessor, and a counter. With a dimension, also its place.
        (aten.max.default, lambda: (cuda(12608, 2304),), 1536 + 512),
        (aten.min.default, lambda: (cuda(12608, 2304),), 1536 + 512),
        (aten.argmax.default, lambda: (cuda(12608, 2304),), 8704 + 512),
    ],
)
def test_other_reductions(function, args, nbytes):
    with FakeTensorMode():
        given = args()
        assert kernel_scratch_bytes(function, given, (function(*given),)) == nbytes


def test_the_largest_of_each_column_takes_half_of_a_sum():
    """It has the dtype of bfloat16 tensors, and a sum is in float32. With the places there are 16 bytes for each."""
    with FakeTensorMode():
        given = cuda(64 * 197, 3 * 768)
        largest, places = kernel_scratch_bytes(aten.amax.default, (given, [0]), (given[0],)), given[0].long()
        total = kernel_scratch_bytes(aten.sum.dim_IntList, (given, [0]), (given[0],))
        assert total - largest == largest - 512
        pairs = kernel_scratch_bytes(aten.max.dim, (given, 0), (given[0], places))
    assert abs(pairs - 4 * total) <= 2048


def test_flash_attention_pads():
    """The query's gradient in float32 has 128 rows and 96 elements instead of 100 and 80. Each row has a sum."""
    with FakeTensorMode():
        query = cuda(2, 3, 100, 80).transpose(1, 2).contiguous().transpose(1, 2)
        args = query, query, query, query, query
        found = kernel_scratch_bytes(aten._scaled_dot_product_flash_attention_backward.default, args, (query,) * 3)
    assert found == 4 * 2 * 3 * 128 * (96 + 1)


def test_an_embedding_has_a_row_for_each_index():
    """Each index also has six numbers of 8 bytes."""
    with FakeTensorMode():
        gradient, places = cuda(4096, 64), cuda(4096, dtype=torch.int64)
        args = gradient, places, 1000, -1, False
        assert kernel_scratch_bytes(aten.embedding_dense_backward.default, args, (gradient,)) == 4096 * (4 * 64 + 6 * 8)
        few = gradient[:3072], places[:3072], 1000, -1, False
        assert kernel_scratch_bytes(aten.embedding_dense_backward.default, few, (gradient,)) == 0


@pytest.mark.parametrize(("dtype", "cap"), [(torch.bfloat16, 0.0), (torch.float32, 0.0), (torch.bfloat16, 30.0)])
def test_a_chunk_of_the_loss(dtype, cap):
    """In addition to the logits, each row of a chunk has a few numbers: at most 16 of 8 bytes."""
    mode = fake_gpu.Counting()
    with mode, fake_gpu._Indices(mode, fake_gpu.CUDA):
        hidden, weight = cuda(2048, 256, dtype=dtype), cuda(8192, 256, dtype=dtype)
        labels = cuda(2048, dtype=torch.int64)
        rows = rows_of_chunk(hidden, len(weight))
        args = hidden, weight, None, labels, None, None, "", 0, 0, -100, 0.0, 1.0, cap, rows, [True, True, False]
        mode.on, mode.now = True, 0
        results = _operator.linear_cross_entropy._init_fn(*args)
        left = mode.now
        modelled = count_scratch(torch.ops.integrations.linear_cross_entropy.default, args, results)
    assert modelled <= mode.peak - left <= modelled + rows * 16 * 8


def held(plan, *step):
    """Return whether a step takes the memory of its plan. It may take a little less: the search counts the larger of
    the bytes before and after a recomputation."""
    measured = fake_gpu.step_bytes(*step)
    return measured <= plan.peak <= 1.03 * measured


def total(output):
    return output.float().sum()


def test_a_vision_transformer_in_mixed_precision(fake_cuda):
    """Casts of the weights are a large part, and the sum for a bias takes more than its gradient."""
    with torch.device("meta"):
        model = library_or_skip("timm").create_model("vit_small_patch16_224", depth=2, img_size=128).train()
        image = torch.empty(16, 3, 128, 128)
    with fake_gpu.amp():
        plan = integrations.plan(model, (image,), memory=0.5, error=0, stores=EXACT)
    casts = [value for op in plan.graph.ops if op.name == "aten._to_copy.default" for value in op.makes if not op.reads]
    assert any(plan.schedule.is_recomputed(value) for value in casts)
    assert held(plan, model, plan, (image,), {}, total, fake_gpu.amp)


def test_a_llama_with_shared_heads_and_a_loss_in_chunks(fake_cuda):
    """The head shares the embedding's weight. The loss makes a part of its gradient, which stays until the end."""
    transformers = library_or_skip("transformers")
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "vocab_size": 4096, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**sizes, **heads, tie_word_embeddings=True, use_cache=False)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()
        words = torch.empty(2, 256, dtype=torch.int64)
    chunk_logits(model.lm_head)
    given = {"input_ids": words, "labels": words}
    with fake_gpu.CudnnAttention():
        plan = integrations.plan(model, (), given, error=0, stores=EXACT)  # of the least memory
    assert held(plan, model, plan, (), given, lambda output: output.loss, fake_gpu.CudnnAttention)


def test_a_resnet_in_mixed_precision(fake_cuda):
    with torch.device("meta"):
        model = library_or_skip("timm").create_model("resnet18", layers=(1, 1, 1, 1)).train()
        model, image = (one.to(memory_format=torch.channels_last) for one in (model, torch.empty(8, 3, 64, 64)))
    with fake_gpu.amp():
        plan = integrations.plan(model, (image,), memory=0.6, error=0, stores=EXACT)
    assert held(plan, model, plan, (image,), {}, total, fake_gpu.amp)
