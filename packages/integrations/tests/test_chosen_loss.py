"""Plans within a memory that choose the loss in chunks, without being asked for it."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import integrations
from actcore import simulate
from integrations import Plan
from integrations.losses.chunked_head import ChunkedHead
from integrations.planner.bounds import Bounds
from integrations.planner.chunked import chunk_op
from integrations.planner.loss_choice import with_better_loss
from integrations.planner.plan_with_stores import planned
from integrations.planner.problem import chosen_entries, training_step
from integrations.policies.levels import LEVELS

from .decoder import CLASSES, IDS, SUMS, Decoder, llama, shifted, step
from .largest import Largest
from .libraries import library_or_skip
from .nets import assert_same, relative_error

WHOLE = IDS.shape[0] * (IDS.shape[1] - 1) * CLASSES


def decoder(loss=shifted):
    return Decoder(loss).train()


def compressed(model, **options):
    return integrations.compress_model(copy.deepcopy(model), **options)


def plan_of(model):
    return integrations.compression(model).plan


def exchanged(model):
    return integrations.compression(model).report().exchanged


def test_where_logits_fit_they_are_whole_and_every_bit_stays():
    model = decoder()
    found = compressed(model, memory=1.0)
    assert_same(step(model)[1], step(found)[1])
    assert plan_of(found).chunked is None
    assert exchanged(found) == ""
    assert "forward" not in vars(found.head)


@pytest.mark.parametrize("memory", [0.3, "least"])
def test_where_they_do_not_fit_the_loss_is_computed_in_chunks(memory):
    model = decoder()
    found = compressed(model, memory=memory)
    _, expected = step(model)
    for _ in range(3):
        with Largest() as largest:
            _, gradients = step(found)
        assert relative_error(expected, gradients) <= SUMS
    assert largest.elements < WHOLE
    plan, plain = plan_of(found), integrations.plan(model, (IDS,), loss="full")
    assert plan.chunked.head == "head"
    # Fractions, peaks and times are of the plain step, which has whole logits.
    assert plan.uncompressed_peak == plan.plain_peak == plain.uncompressed_peak
    assert plan.accumulating.uncompressed_peak == plain.accumulating.uncompressed_peak
    assert plan.plain_seconds == plain.graph.seconds
    assert plan.peak <= (0.3 if memory == 0.3 else 1) * plain.uncompressed_peak
    rows = plan.chunked.rows
    assert exchanged(found) == f"Exchanged: a loss in chunks of {rows} rows, without logits, chosen by the plan."
    assert "the loss in chunks" in integrations.compression(found).report().recomputed
    assert "so the whole logits of head are never in memory" in str(plan)


def test_a_budget_that_whole_logits_meet_only_in_more_time():
    """The loss in chunks is taken if it is faster by the models of times, and the full loss is on a tie."""
    model = decoder()

    def make():
        return planned(model, LEVELS["L0"], (IDS,), {})

    full = make()
    least = full.front[0].peak + 1
    bounds = Bounds(f"{least}B")
    assert full.within(bounds.memory).seconds > 0
    found = with_better_loss(model, make, bounds)
    assert (found.chunked is not None) == (found.within(bounds.memory).overhead < full.within(bounds.memory).overhead)
    slow = [replace(full, front=tuple(replace(one, seconds=one.seconds + 1e9) for one in full.front))]
    assert with_better_loss(model, make, bounds, slow[0]).chunked is not None
    assert with_better_loss(model, make, Bounds(1.0)).chunked is None
    assert with_better_loss(model, make, Bounds(None, time=1.5)).chunked is None
    assert with_better_loss(model, make, Bounds(0.2, stores=("recompute",))).chunked is None


def test_full_forbids_it():
    model = decoder()
    found = compressed(model, memory="least", loss="full")
    assert_same(step(model)[1], step(found)[1])
    refused = compressed(model, memory=0.3, loss="full")
    with pytest.raises(ValueError, match="leave out loss='full', which prevents computing the loss without them"):
        step(refused)
    with pytest.raises(ValueError, match="must be at least"):
        integrations.plan(model, (IDS,), memory=0.3, loss="full")
    assert integrations.plan(model, (IDS,), memory=0.3).chunked is not None


def test_a_function_of_the_output_is_taken_as_it_is():
    """What the loop does with the logits is not known."""
    model = decoder(lambda logits, ids: logits)
    with pytest.raises(ValueError, match="must be at least"):
        integrations.plan(model, (IDS,), memory=0.3, loss=lambda logits: shifted(logits, IDS))
    assert integrations.plan(model, (IDS,), memory="least", loss=lambda logits: shifted(logits, IDS)).chunked is None


def test_a_saved_plan_has_the_choice(tmp_path):
    model = decoder()
    plan = integrations.plan(model, (IDS,), memory=0.3)
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.chunked == plan.chunked
    assert loaded == plan
    found = integrations.apply(copy.deepcopy(model), loaded)
    with Largest() as largest:
        _, gradients = step(found)
    assert largest.elements < WHOLE
    assert relative_error(step(model)[1], gradients) <= SUMS
    with pytest.raises(ValueError, match="loss must not be 'full' with this plan of Decoder"):
        compressed(model, level="L0", checkpoint=loaded, loss="full")
    full = integrations.plan(model, (IDS,), memory="least", loss="full")
    assert Plan.from_json(full.to_json()).bounds.loss == "full"
    content = json.loads(full.to_json())
    del content["loss"], content["chunked"]
    assert Plan.from_json(json.dumps(content)).chunked is None  # of an earlier version


def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one():
    model = decoder()
    found = compressed(model, memory=0.3)
    step(found)
    state = json.loads(json.dumps(integrations.compression(found).state_dict()))
    again = compressed(model, memory=0.3)
    integrations.compression(again).load_state_dict(state)
    assert_same(step(found)[1], step(again)[1])
    assert plan_of(again).chunked == plan_of(found).chunked
    refusing = compressed(model, memory=0.3, loss="full")
    with pytest.raises(ValueError, match="loss must not be 'full'"):
        integrations.compression(refusing).load_state_dict(state)
    exact = compressed(model, memory="least", loss="full")
    step(exact)
    integrations.compression(again).load_state_dict(integrations.compression(exact).state_dict())
    assert_same(step(model)[1], step(again)[1])
    assert exchanged(again) == ""


def test_restoring_and_copies():
    found = compressed(decoder(), memory=0.3)
    _, gradients = step(found)
    other = copy.deepcopy(found)
    assert_same(gradients, step(other)[1])
    assert exchanged(other) == exchanged(found)
    integrations.restore_model(found)
    assert not any("forward" in vars(module) for module in found.modules())
    with Largest() as largest:
        step(found)
    assert largest.elements >= WHOLE


def test_each_input_has_the_loss_that_is_better_for_it():
    """A shorter batch fits with whole logits, which keeps its bits."""
    model = decoder()
    short = IDS[:, :12]
    whole = integrations.plan(model, (IDS,), loss="full").uncompressed_peak
    found = compressed(model, memory=whole // 3)
    for ids, in_chunks in ((short, False), (IDS, True), (short, False), (IDS, True)):
        wanted, expected = step(model, ids)
        loss, gradients = step(found, ids)
        assert (plan_of(found).chunked is not None) == in_chunks
        if in_chunks:
            assert abs(loss - wanted) <= 1e-6 * abs(wanted)
            assert relative_error(expected, gradients) <= SUMS
        else:
            assert_same(expected, gradients)


def test_evaluation_and_what_is_asked_of_the_output():
    """Whoever asks the output for its logits gets them, and is told when they are too late."""
    found = compressed(decoder(lambda logits, ids: (shifted(logits, ids), logits)), memory=0.3)
    loss, logits = found(IDS)
    loss.backward()
    assert plan_of(found).chunked is not None
    assert torch.equal(logits.argmax(-1), found.eval()(IDS)[1].argmax(-1))
    with torch.no_grad():
        assert type(found(IDS)[1]) is torch.Tensor
    with pytest.warns(UserWarning, match=r"softmax\(\) needs all logits.* pass loss='full'"):
        probabilities = logits.softmax(-1)
    assert (probabilities - found(IDS)[1].softmax(-1)).abs().max() <= 1e-6
    assert "though the logits were made, for softmax()" in exchanged(found)
    loss, logits = found.train()(IDS)
    loss.backward()
    torch.optim.SGD(found.parameters(), 0.1).step()
    with pytest.raises(RuntimeError, match="or pass loss='full' to compress_model"):
        logits.softmax(-1)


def looked_at(logits, ids):
    return shifted(logits, ids) + 1e-3 * logits.exp().mean()


def test_a_model_that_needs_its_logits_keeps_them():
    model = decoder(looked_at)
    found = compressed(model, memory="least")
    assert_same(step(model)[1], step(found)[1])
    assert plan_of(found).chunked is None
    assert ChunkedHead.of(found.head) is None


def test_neither_loss_fits():
    """The error names the least memory of both losses, and the fallback takes it."""
    model = decoder()
    with pytest.raises(ValueError, match="must be at least") as refused:
        step(compressed(model, memory="1KiB"))
    assert "chunked" not in str(refused.value)
    assert "By estimate, rounding (error=0.1) would not lower it" in str(refused.value)
    least = integrations.plan(model, (IDS,), memory="least")
    assert f"at least {least.peak} bytes" in str(refused.value)
    assert f"or {least.accumulating.front[0].peak} bytes" in str(refused.value)
    falling = compressed(model, memory="1KiB", fallback="least")
    with pytest.warns(UserWarning, match="The plan with the least memory is used"):
        step(falling)
    assert plan_of(falling).chunked is not None
    assert plan_of(falling).peak == least.peak


def test_several_inputs_and_a_fraction_of_the_largest():
    model = decoder()
    plan = integrations.plan(model, [(IDS,), (IDS[:, :12],)], memory=0.3)
    assert plan.chunked is not None
    assert [other.chunked for other in plan.also] == []  # the shorter one is within the longer one
    tall, wide = IDS, IDS[:1].repeat(1, 3)
    plan = integrations.plan(model, [(tall,), (wide,)], memory=0.3)
    assert plan.chunked is not None
    assert plan.also[0].chunked is not None
    assert plan.also[0].peak <= 0.3 * plan.uncompressed_peak


def peak_with(plan, rows):
    """The peak of a plan's choice with chunks of so many rows, each of which has its logits in float32."""
    number, graph = chunk_op(plan.followed), plan.followed
    op = replace(graph.ops[number], scratch=rows * CLASSES * 4)
    graph = replace(graph, ops=(*graph.ops[:number], op, *graph.ops[number + 1 :]))
    candidates = plan.candidates_for(plan.choice)
    return simulate(training_step(graph, candidates), *chosen_entries(plan.choice, candidates)).peak - graph.gradients


def test_chunks_are_as_large_as_the_memory_allows():
    model = decoder()
    plans = [integrations.plan(model, (IDS,), memory=memory) for memory in ("least", 0.3, 0.5, 0.7)]
    rows = [plan.chunked.rows for plan in plans]
    assert rows[0] == 128  # the least on a CPU
    assert rows == sorted(rows)
    assert rows[-1] > 200
    for plan, memory in zip(plans[1:], (0.3, 0.5, 0.7), strict=True):
        assert plan.peak <= memory * plan.uncompressed_peak
        assert peak_with(plan, plan.chunked.rows) <= plan.peak
        count = IDS[:, 1:].numel()
        fewer = -(-count // (-(-count // plan.chunked.rows) - 1))  # the rows of one chunk fewer
        assert peak_with(plan, fewer) > memory * plan.uncompressed_peak or fewer > plan.chunked.most_rows
        assert plan.within("least").chunked.rows == 128
        again = Plan.from_json(plan.to_json())
        assert again.chunked == plan.chunked
        assert again.accumulating.chunked.rows == plan.accumulating.chunked.rows
    found = integrations.apply(copy.deepcopy(model), plans[-1])
    _, gradients = step(found)
    assert relative_error(step(model)[1], gradients) <= SUMS
    assert f"chunks of {rows[-1]} rows" in exchanged(found)


def test_at_a_level():
    model = decoder()
    found = compressed(model, level="L1.1", memory=0.4, min_bytes=0)
    with Largest() as largest:
        step(found)
    assert largest.elements < WHOLE
    assert plan_of(found).chunked is not None


def test_with_a_bound_on_the_time_and_with_rounding():
    """Both are of the plain step with whole logits, and the error is that of the loss in chunks."""
    model = decoder()
    plan = integrations.plan(model, (IDS,), memory=0.3, time=3.0)
    assert plan.chunked is not None
    assert plan.overhead <= 2.0
    found = compressed(model, memory="least", error=0.1, stores=("8 bits",))
    _, gradients = step(found)
    _, expected = step(model)
    plan = plan_of(found)
    assert plan.chunked is not None
    assert plan.choice.rounds
    assert SUMS < relative_error(expected, gradients) <= 0.3  # of single parameters, where the whole has 0.1
    step(found)
    measured = integrations.compression(found).measured
    assert measured.step == 0
    assert 0 < measured.relative <= 0.1


def test_in_steps_that_add_to_gradients():
    model = decoder()
    found = compressed(model, memory=0.4)
    step(found)
    for _ in range(2):
        found(IDS).backward()
    plan = plan_of(found)
    assert plan.graph.accumulates
    assert plan.chunked is not None
    assert plan.peak <= 0.4 * plan.uncompressed_peak
    _, expected = step(model)
    gradients = {name: one.grad / 3 for name, one in found.named_parameters()}
    assert relative_error(expected, gradients) <= 2 * SUMS  # two sums more


@pytest.mark.parametrize("way", ["tied", "tuple", "adapter", "adapter on the head"])
def test_models_of_transformers(way):
    hf, model = library_or_skip("integrations.hf"), llama(tie_word_embeddings=way == "tied")
    if way.startswith("adapter"):
        peft = library_or_skip("peft")
        targets = ["q_proj", "lm_head"] if "head" in way else ["q_proj"]
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False))
    given = {"input_ids": IDS, "labels": IDS, "return_dict": way != "tuple"}
    found = hf.compress_model(copy.deepcopy(model), memory=0.6)
    results = []
    for one in (found, model):
        output = one(**given)
        loss = output[0] if way == "tuple" else output.loss
        loss.backward()
        results.append((loss.detach(), {name: x.grad for name, x in one.named_parameters() if x.grad is not None}))
    (loss, gradients), (wanted, expected) = results
    assert plan_of(found).chunked.head.endswith("lm_head")
    assert abs(loss - wanted) <= 1e-6 * wanted
    assert relative_error(expected, gradients) <= SUMS


class Checkpointed(Decoder):
    """A head and its loss in a checkpoint, whose recomputation in backward ends before the loss."""

    def forward(self, ids):
        hidden = torch.tanh(self.layer(self.embedding(ids)))
        return checkpoint(lambda hidden: shifted(self.head(hidden), ids), hidden, use_reentrant=False)


def test_a_loss_in_a_checkpoint_has_chunks_of_the_default_size():
    """The rows of its chunks are not known from a capture. They became 1."""
    model = Checkpointed(shifted).train()
    found = compressed(model, memory="least")
    assert relative_error(step(model)[1], step(found)[1]) <= SUMS
    assert plan_of(found).chunked.rows == 0
    assert ChunkedHead.of(found.head).planned_rows is None


class Unnamed(nn.Module):
    """A head that is no linear layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(CLASSES, 32))
        self.embedding = nn.Embedding(CLASSES, 32)

    def forward(self, ids):
        return shifted(self.embedding(ids) @ self.weight.T, ids)


def test_without_a_layer_that_makes_the_logits_there_is_no_choice():
    model = Unnamed().train()
    assert integrations.plan(model, (IDS,), memory="least").chunked is None
