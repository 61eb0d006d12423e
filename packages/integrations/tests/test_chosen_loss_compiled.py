"""The loss in chunks in models that torch compiles."""

import warnings

import pytest
import torch

import integrations

from .decoder import IDS, SUMS, Decoder, shifted, step, twin
from .nets import relative_error


def test_code_of_torch_compile_makes_its_logits():
    model = integrations.compress_model(Decoder(shifted).train(), memory="least")
    step(torch.compile(model, backend="aot_eager"))
    assert integrations.compression(model).plan.chunked is None


def test_a_loss_in_chunks_that_was_asked_for_is_computed_in_a_compiled_forward(fresh_compiler):
    """The graph breaks at the head. Dynamo traces nothing of what is done to the logits, which runs in Python."""
    model, found = Decoder(shifted).train(), twin(Decoder(shifted).train())
    compiled = torch.compile(found, backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            loss, gradients = step(compiled)
    expected, whole = step(model)
    assert torch.allclose(loss, expected)
    assert relative_error(whole, {name.removeprefix("_orig_mod."): one for name, one in gradients.items()}) < SUMS
    assert "a loss in chunks of 128 rows, without logits" in integrations.compression(found).report().exchanged
    with torch.no_grad():
        assert torch.allclose(compiled(IDS), expected)


def test_a_loss_in_chunks_in_one_graph_raises(fresh_compiler):
    """It made the logits. Dynamo wraps the error into its own."""
    compiled = torch.compile(twin(Decoder(shifted).train()), backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match=r"ValueError: a loss in chunks breaks the graph .* or pass loss='full'"):
        compiled(IDS)
