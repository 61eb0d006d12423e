"""``linear_cross_entropy``: torch's loss and gradients of logits that never exist as a whole."""

import copy
import dataclasses
import re
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import integrations
from integrations.losses import LinearCrossEntropyLoss, linear_cross_entropy
from integrations.losses._chunks import Sums, chunked
from integrations.losses._layers import layer_cross_entropy
from integrations.losses._terms import Terms

from .largest import Largest
from .nets import normal

ROWS, FEATURES, CLASSES = 70, 16, 50
# Products of 16 terms and sums of 70 rows, of which each rounds to half a unit: some tens of units in all.
BOUNDS = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}


def problem(dtype=torch.float32, rows=ROWS, features=FEATURES, classes=CLASSES):
    """Hidden states, weight, bias and labels, every seventh of which is ignored."""
    labels = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(4))
    labels[::7] = -100
    tensors = normal(rows, features), normal(classes, features, seed=1), normal(classes, seed=2)
    return *(tensor.to(dtype).requires_grad_() for tensor in tensors), labels


def error(found, wanted):
    """The largest relative error of several tensors, in the Euclidean norm."""
    pairs = zip(found, wanted, strict=True)
    return max(((one.double() - other).norm() / other.norm()).item() for one, other in pairs)


def exact(hidden, weight, bias, labels, scale=1.0, softcap=None, class_weight=None, **options):
    """The loss and the gradients in float64, by torch's own functions, for a ``gradient`` of the loss."""
    given = options.pop("gradient")
    tensors = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight, bias) if tensor is not None]
    logits = F.linear(*tensors) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    loss = F.cross_entropy(logits, labels, None if class_weight is None else class_weight.double(), **options)
    return [loss.detach(), *torch.autograd.grad(loss, tensors, given.double())]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_and_gradients_are_those_of_the_logits(dtype, reduction):
    for bias, weighted, smoothing, scale, softcap in product((0, 1), (0, 1), (0.0, 0.2), (1.0, 0.5), (None, 3.0)):
        hidden, weight, its_bias, labels = problem(dtype)
        options = {
            "class_weight": torch.rand(CLASSES) + 0.5 if weighted else None,
            "label_smoothing": smoothing,
            "scale": scale,
            "softcap": softcap,
            "reduction": reduction,
        }
        loss = linear_cross_entropy(hidden, weight, labels, its_bias if bias else None, **options, rows=9)
        gradient = torch.rand_like(loss) + 0.5
        tensors = (hidden, weight, its_bias)[: 2 + bias]
        found = [loss.detach(), *torch.autograd.grad(loss, tensors, gradient)]
        wanted = exact(*tensors, *[None] * (1 - bias), labels, **options, gradient=gradient)
        assert error(found, wanted) <= BOUNDS[dtype], options


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("chunks", [1, 3, 64, 4096])
def test_many_chunks_lose_nothing(chunks, dtype):
    """Loss and gradients are summed in float32: as exact with 4,096 chunks as with one."""
    hidden, weight, _, labels = problem(dtype, rows=4096, features=8, classes=20)
    loss = linear_cross_entropy(hidden, weight, labels, rows=-(-4096 // chunks))
    found = [loss.detach(), *torch.autograd.grad(loss, (hidden, weight))]
    wanted = exact(hidden, weight, None, labels, gradient=torch.ones(()))
    # What remains of the loss is the logits' own rounding, which is unbiased. Logits of 8 to 16 are sums of 8 terms,
    # each rounded by up to half a unit of 2^-20, so off by 2^-21 * 8 ** 0.5 or less, and probabilities with them.
    assert abs(found[0] - wanted[0]) <= (1e-6 if dtype == torch.float32 else 1e-3)
    assert error(found[1:], wanted[1:]) <= (2e-6 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_tensor_is_larger_than_a_chunk_or_a_gradient(dtype):
    hidden, weight, bias, labels = (tensor.detach() for tensor in problem(dtype, rows=2000, classes=500))
    terms = Terms(ignored=-100, smoothing=0.1, scale=2.0, cap=5.0)
    sums = Sums(*(torch.zeros_like(tensor, dtype=torch.float32) for tensor in (hidden, weight, bias)))
    sums = dataclasses.replace(sums, hidden=torch.zeros_like(hidden))
    with Largest() as largest:
        chunked(hidden, weight, bias, labels, None, None, terms, 100, sums)
    assert largest.elements == 100 * 500


def test_shapes_and_the_labels_dtype():
    hidden, weight, _, labels = problem()
    flat = linear_cross_entropy(hidden, weight, labels, reduction="none")
    shaped = linear_cross_entropy(hidden.view(7, 10, -1), weight, labels.view(7, 10).int(), reduction="none")
    assert torch.equal(shaped, flat.view(7, 10))
    assert linear_cross_entropy(hidden[0], weight, labels[1]).shape == ()


def test_rows_that_are_ignored_may_be_no_numbers():
    """As padding may be, which torch's loss does not look at either."""
    hidden, weight, _, labels = problem()
    with torch.no_grad():
        hidden[::7] = torch.inf
    loss = linear_cross_entropy(hidden, weight, labels, rows=10)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(hidden.grad).all()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_where_every_label_is_ignored_gradients_are_zero(reduction, compiled):
    """The mean is no number, and an optimizer's step is none, as with torch's loss."""
    hidden, weight, bias, labels = problem()
    labels.fill_(-100)
    call = torch.compile(linear_cross_entropy, backend="aot_eager") if compiled else linear_cross_entropy
    found = call(hidden, weight, labels, bias, reduction=reduction)
    wanted = F.cross_entropy(F.linear(hidden, weight, bias), labels, reduction=reduction)
    assert torch.equal(found, wanted) or (found.isnan() and wanted.isnan())
    found.backward()
    assert not any(tensor.grad.any() for tensor in (hidden, weight, bias))


def test_without_gradients_none_are_computed():
    hidden, weight, _, labels = problem(rows=20, classes=5000)
    with torch.no_grad(), Largest() as largest:
        linear_cross_entropy(hidden, weight, labels)
    assert largest.elements < weight.numel()


def test_what_needs_no_gradient_gets_none():
    hidden, weight, bias, labels = problem()
    linear_cross_entropy(hidden, weight.detach(), labels, bias.detach()).backward()
    assert hidden.grad is not None
    loss = linear_cross_entropy(hidden.detach(), weight, labels, bias)
    loss.backward()
    assert weight.grad is not None
    assert bias.grad is not None
    assert not linear_cross_entropy(hidden.detach(), weight.detach(), labels).requires_grad


def test_the_graph_may_stay():
    hidden, weight, _, labels = problem()
    loss = linear_cross_entropy(hidden, weight, labels)
    first = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    second = torch.autograd.grad(loss, (hidden, weight))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, hidden)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_twice_differentiated_it_raises(reduction):
    hidden, weight, _, labels = problem()

    def penalty():
        loss = linear_cross_entropy(hidden, weight, labels, reduction=reduction).sum()
        (gradient,) = torch.autograd.grad(loss, hidden, create_graph=True)
        (loss + gradient.norm()).backward()

    with pytest.raises(NotImplementedError, match="no second derivative"):
        penalty()


def test_accumulated_over_steps_gradients_are_those_of_all():
    hidden, weight, _, labels = problem()
    for part in (slice(0, 30), slice(30, None)):
        linear_cross_entropy(hidden[part], weight, labels[part], reduction="sum").div(7).backward()
    _, *wanted = exact(hidden, weight, None, labels, reduction="sum", gradient=torch.tensor(1 / 7))
    assert error((hidden.grad, weight.grad), wanted) <= BOUNDS[torch.float32]


def test_in_float16_the_sum_of_rows_may_be_out_of_range():
    """A mean is in range whose sum is not, and small gradients are scaled before they are rounded."""
    hidden = torch.full((4096, 4), 60.0, dtype=torch.float16).requires_grad_()
    weight = torch.zeros(4, 4, dtype=torch.float16).requires_grad_()
    loss = linear_cross_entropy(hidden, weight, torch.zeros(4096, dtype=torch.int64))
    (loss * 1024).backward()  # as a GradScaler has it
    assert torch.isfinite(weight.grad).all()
    assert weight.grad[0, 0].item() == pytest.approx(-0.75 * 60 * 1024, rel=1e-3)


def test_under_autocast_products_are_in_its_dtype():
    hidden, weight, bias, labels = problem()
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_cross_entropy(hidden, weight, labels, bias)
        wanted = F.cross_entropy(F.linear(hidden, weight, bias), labels)
    assert found.dtype == wanted.dtype == torch.float32
    found.backward()
    gradients = [tensor.grad.clone() for tensor in (hidden, weight, bias)]
    for tensor in (hidden, weight, bias):
        tensor.grad = None
    wanted.backward()
    assert abs(found - wanted) <= 1e-5 * wanted  # of the same rounded logits
    assert all(one.dtype == torch.float32 for one in gradients)
    assert error(gradients, [tensor.grad.double() for tensor in (hidden, weight, bias)]) <= BOUNDS[torch.bfloat16]


def test_compiled_it_is_one_graph_and_as_exact():
    hidden, weight, bias, labels = problem()
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")
    loss = compiled(hidden, weight, labels, bias, label_smoothing=0.1)
    found = [loss.detach(), *torch.autograd.grad(loss, (hidden, weight, bias))]
    wanted = exact(hidden, weight, bias, labels, label_smoothing=0.1, gradient=torch.ones(()))
    assert error(found, wanted) <= BOUNDS[torch.float32]


@pytest.mark.parametrize("reentrant", [False, True])
def test_inside_a_checkpoint(reentrant):
    hidden, weight, _, labels = problem()
    loss = checkpoint(linear_cross_entropy, hidden, weight, labels, use_reentrant=reentrant)
    loss.backward()
    found = hidden.grad, weight.grad
    _, *wanted = exact(hidden, weight, None, labels, gradient=torch.ones(()))
    assert error(found, wanted) <= BOUNDS[torch.float32]


def test_in_a_block_its_gradients_are_exact():
    """What it has saved are gradients, which no level rounds."""
    model = torch.nn.Linear(FEATURES, CLASSES)
    hidden, _, _, labels = problem(rows=700)
    with integrations.compress(model, level="L1.2", min_bytes=0):
        linear_cross_entropy(hidden, model.weight, labels, model.bias).backward()
    _, *wanted = exact(hidden, model.weight, model.bias, labels, gradient=torch.ones(()))
    found = hidden.grad, model.weight.grad, model.bias.grad
    assert error(found, wanted) <= BOUNDS[torch.float32]


def test_hooks_of_others_see_what_waits_for_backward_alone():
    """Of a layer that is called for each chunk, too: what a chunk saves is gone with it."""
    hidden, weight, _, labels = problem()
    packed = []
    with saved_tensors_hooks(lambda tensor: packed.append(tuple(tensor.shape)) or tensor, lambda tensor: tensor):
        loss = layer_cross_entropy(
            hidden,
            lambda some: F.linear(some, weight) * 2,
            (weight,),
            labels,
            None,
            Terms(scale=0.5, cap=4.0),
            "mean",
            rows=9,
            classes=len(weight),
        )
    assert sorted(packed) == [(), (CLASSES, FEATURES), (ROWS, FEATURES)]
    found = [loss.detach(), *torch.autograd.grad(loss, (hidden, weight))]
    assert (
        error(found, exact(hidden, weight, None, labels, softcap=4.0, gradient=torch.ones(()))) <= BOUNDS[torch.float32]
    )


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_under_torch_func_it_raises(reduction):
    hidden, weight, _, labels = (tensor.detach() for tensor in problem())
    with pytest.raises(NotImplementedError, match=r"does not support torch\.func"):
        torch.func.grad(lambda some: linear_cross_entropy(some, weight, labels, reduction=reduction).sum())(hidden)


def test_on_meta():
    hidden, weight, bias, labels = (tensor.to("meta") for tensor in problem())
    assert linear_cross_entropy(hidden, weight, labels, bias).device.type == "meta"


def test_the_module():
    hidden, weight, bias, labels = problem()
    criterion = LinearCrossEntropyLoss(label_smoothing=0.1, ignore_index=3)
    wanted = linear_cross_entropy(hidden, weight, labels.clamp(0), bias, label_smoothing=0.1, ignore_index=3)
    assert torch.equal(copy.deepcopy(criterion)(hidden, weight, labels.clamp(0), bias), wanted)
    with pytest.raises(TypeError, match="ignore_idx"):
        LinearCrossEntropyLoss(ignore_idx=3)
    assert repr(criterion) == "LinearCrossEntropyLoss(label_smoothing=0.1, ignore_index=3)"


def test_the_modules_weights_of_classes_move_with_it():
    criterion = LinearCrossEntropyLoss(class_weight=torch.ones(CLASSES), reduction="sum")
    assert criterion.to("meta").class_weight.device.type == "meta"
    hidden, weight, _, labels = (tensor.to("meta") for tensor in problem())
    assert criterion(hidden, weight, labels).device.type == "meta"
    assert list(criterion.state_dict()) == ["class_weight"]


def test_narrow_weights_of_classes_are_summed_in_float32():
    """The divisor of a mean, of a layer that is called for each chunk, too: a sum in bfloat16 is off by up to 2^-9."""
    hidden, weight, _, labels = problem(torch.bfloat16, rows=4000)
    classes = torch.linspace(0.5, 1.5, CLASSES, dtype=torch.bfloat16)
    in_chunks = linear_cross_entropy(hidden, weight, labels, class_weight=classes, rows=100)
    called = layer_cross_entropy(
        hidden, lambda some: F.linear(some, weight), (weight,), labels, classes, Terms(), "mean", 100, CLASSES
    )
    # The same rounded logits, whose losses of 0 to 30 are summed in float32 in another order.
    assert abs(called - in_chunks) <= 1e-5 * in_chunks


def test_the_example_of_the_documentation():
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "language-models.md").read_text()
    (code,) = re.findall(r"^## In a loop of your own\n.*?```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names = {}
    exec(code, names)
    wanted = F.cross_entropy(
        (names["hidden"][:, :-1] @ names["weight"].T).flatten(0, 1), names["labels"][:, 1:].flatten()
    )
    assert abs(names["loss"] - wanted) <= 1e-5 * wanted
    assert names["weight"].grad is not None


HIDDEN, WEIGHT, BIAS, LABELS = problem()
TOO_LARGE = LABELS.masked_fill(LABELS.eq(int(LABELS[1])), CLASSES)
WRONG = {
    "hidden must be a tensor of floating": (TypeError, ([1.0], WEIGHT, LABELS), {}),
    "labels must be .*probabilities": (TypeError, (HIDDEN, WEIGHT, torch.rand(ROWS, CLASSES)), {}),
    r"hidden must be \(\.\.\., features\)": (ValueError, (HIDDEN[:, 1:], WEIGHT, LABELS), {}),
    "labels must have the shape .*shift both": (ValueError, (HIDDEN, WEIGHT, LABELS[1:]), {}),
    "classes from 0 to 49.*got 50": (ValueError, (HIDDEN, WEIGHT, TOO_LARGE), {}),
    "weight must have hidden's dtype": (ValueError, (HIDDEN, WEIGHT.double(), LABELS), {}),
    "bias must have the shape": (ValueError, (HIDDEN, WEIGHT, LABELS, BIAS[1:]), {}),
    "labels must be on hidden's device": (ValueError, (HIDDEN, WEIGHT, LABELS.to("meta")), {}),
    "reduction must be one of": (ValueError, (HIDDEN, WEIGHT, LABELS), {"reduction": "max"}),
    "label_smoothing must be from 0 to 1": (ValueError, (HIDDEN, WEIGHT, LABELS), {"label_smoothing": 2}),
    "softcap must be": (ValueError, (HIDDEN, WEIGHT, LABELS), {"softcap": 0}),
    "rows must be an int from 1": (ValueError, (HIDDEN, WEIGHT, LABELS), {"rows": 2.5}),
    "ignore_index must be an int": (TypeError, (HIDDEN, WEIGHT, LABELS), {"ignore_index": 1.5}),
    "scale must be a finite number.*multiply hidden": (TypeError, (HIDDEN, WEIGHT, LABELS), {"scale": BIAS[0]}),
    "class_weight must not require a gradient": (ValueError, (HIDDEN, WEIGHT, LABELS), {"class_weight": BIAS}),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_said(message):
    kind, given, options = WRONG[message]
    with pytest.raises(kind, match=message):
        linear_cross_entropy(*given, **options)


def test_an_unknown_reduction_of_a_layer_that_is_called_raises():
    """The sum of the losses was returned."""
    with pytest.raises(ValueError, match="reduction must be one of mean, sum, none, got 'avg'"):
        layer_cross_entropy(
            HIDDEN, lambda some: F.linear(some, WEIGHT), (WEIGHT,), LABELS, None, Terms(), "avg", 9, CLASSES
        )
