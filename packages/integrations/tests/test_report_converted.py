"""The report of a model that was converted by ``QModule`` or ``fewbit.convert``, but not compressed."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import integrations
from integrations import fewbit, qmodules
from integrations._utils.forward_wrapper import ForwardWrapper

from .nets import gradients, normal

X = normal(64, 32)
CONVERSIONS = {
    "QModule": lambda model: qmodules.QModule(model, level="L2"),
    "fewbit.convert": lambda model: fewbit.convert(model, linear=0.25),
    "fewbit.convert, layers": lambda model: fewbit.convert(model, linear=0.25, calls=False),
    "both": lambda model: qmodules.QModule(fewbit.convert(model), level="L2"),
}
every_way = pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS.keys())


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


def make_report(model):
    return integrations.compression(model).report()


def free(report):
    return [row for row in report.rows if not row.owner]


@every_way
def test_it_is_there_after_one_forward_and_is_that_of_compress_model(convert):
    model = convert(net())
    assert "No forward has been compressed yet" in make_report(model).caption
    model.eval()(X)
    with torch.no_grad():
        model.train()(X)
    assert not make_report(model).rows
    model(X).sum().backward()
    report = make_report(model)
    assert report.exchanged.startswith("Exchanged: ")
    assert "step peak not known" in report.title
    assert "It does not list tensors that other operators save" in report.caption
    assert str(report).startswith(report.title)
    options = {"layers": {"level": "L2"}} if convert is CONVERSIONS["QModule"] else None
    if options:
        twin = integrations.compress_model(net(), level="L0", **options)
        twin(X).sum().backward()
        counted = {
            (row.module, row.operator, row.role, row.original_bytes, row.stored_bytes)
            for row in free(make_report(twin))
        }
        # The layers of this model save nothing else.
        assert {
            (row.module, row.operator, row.role, row.original_bytes, row.stored_bytes) for row in free(report)
        } == counted


@every_way
def test_a_model_is_as_it_was_after_the_first_forward(convert):
    model, plain = convert(net()), net()
    model(X).sum().backward()
    wrappers = [type(one).__name__ for one in ForwardWrapper.all_of(model)]
    assert wrappers in ([], ["FewBitForward"])
    first = make_report(model).rows
    model(X[:8]).sum().backward()
    assert make_report(model).rows == first
    for undo in (qmodules.restore_model, fewbit.restore_model):
        if (qmodules if undo is qmodules.restore_model else fewbit).is_converted(model):
            undo(model)
    assert vars(model).keys() == vars(plain).keys()
    with pytest.raises(ValueError, match="is not compressed"):
        integrations.compression(model)


@every_way
def test_conversions_undone_before_any_forward(convert):
    model = convert(net())
    for module, undo in ((qmodules, qmodules.restore_model), (fewbit, fewbit.restore_model)):
        if module.is_converted(model):
            undo(model)
    assert vars(model).keys() == vars(net()).keys()


def test_listening_changes_no_gradient():
    """A hook instead of a listener would make each layer store its own copy of a shared input."""
    found = []
    for listened in (True, False):
        model = qmodules.QModule(net(), level="L2")
        if not listened:
            next(ForwardWrapper.all_of(model)).take_out()
        found.append(gradients(model, X))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("forwards", [0, 1])
def test_copies_have_reports_of_their_own(copier, forwards):
    model = qmodules.QModule(net(), level="L2")
    for _ in range(forwards):
        model(X).sum().backward()
    twin = copier(model)
    twin(X[:8]).sum().backward()
    assert {row.shape[0] for row in free(make_report(twin))} == {64 if forwards else 8}
    assert bool(make_report(model).rows) == bool(forwards)


def test_what_a_checkpoint_recomputes_is_not_told():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.last = net(), nn.Linear(8, 8)

        def forward(self, x):
            return self.last(checkpoint(self.inner, x, use_reentrant=False))

    model = qmodules.QModule(Net(), level="L2")
    model(X).sum().backward()
    assert [row.module for row in free(make_report(model))] == ["last"]
    assert {row.module for row in make_report(model).rows} == {"last"}


def test_an_input_that_two_layers_share_counts_once():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.one, self.other = nn.Linear(32, 64), nn.Linear(64, 8), nn.Linear(64, 8)

        def forward(self, x):
            h = self.first(x)
            return self.one(h) + self.other(h)

    model = qmodules.QModule(Net(), level="L2")
    model(X).sum().backward()
    one, other = [row.stored_bytes for row in free(make_report(model)) if row.shape == (64, 64)]
    assert one > 64 * 64 // 4
    assert other == 4  # one element that carries the history of the input


def test_a_model_that_is_compressed_later_has_one_report():
    model = qmodules.QModule(net(), level="L2")
    integrations.compress_model(model, level="L1", min_bytes=0)
    assert [type(one).__name__ for one in ForwardWrapper.all_of(model)] == ["CompressedForward"]
    model(X).sum().backward()
    report = make_report(model)
    assert report.exchanged == "Exchanged: 5 Q-layers."
    assert report.title.startswith("L1")


def test_compiled_and_transformed_forwards_are_left_alone():
    model = qmodules.QModule(net(), level="L2")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    compiled(X).sum().backward()
    parameters = dict(model.named_parameters())
    torch.func.grad(lambda values: torch.func.functional_call(model, values, (X,)).sum())(parameters)
    assert not make_report(compiled).rows
    model(X).sum().backward()
    assert make_report(compiled).rows


def test_a_forward_that_somebody_wrapped_is_listened_to_once():
    model = qmodules.QModule(net(), level="L2")
    ours = model.forward
    model.forward = lambda x: ours(x)
    for rows in (64, 8):
        model(X[:rows]).sum().backward()
        assert {row.shape[0] for row in free(make_report(model))} == {64}
    assert ours.over


def test_a_forward_that_fails_is_not_the_first_one():
    model = qmodules.QModule(net(), level="L2")
    with pytest.raises(RuntimeError, match="shapes"):
        model(normal(4, 3))
    model(X).sum().backward()
    assert {row.shape[0] for row in free(make_report(model))} == {64}
