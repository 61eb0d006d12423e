"""Errors in what is the user's: hooks, closures, forwards, functions and codecs of one's own, while a plan is made, and
in the middle of ``compress_model`` and ``restore_model``. The error reaches the user, what torch alone would leave is
left, and the next step is that of an undisturbed twin."""

import contextlib

import pytest
import torch
from torch import nn

import actcore
import integrations
from integrations import checkpoint

from . import fault_ways
from .fault_ways import X, step
from .faults import AtCall, Trial, counting_alone, differing, interrupted_anywhere, of_thread, places, same
from .long_form import LONG

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*offload"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # as in test_faults_steps.py
]


ANY = "any"


class Boom(Exception):
    """The user's error."""


class AtUser:
    """Raises an error at the nth place of one kind of the user's code; counts the places of each kind."""

    here = None

    def __init__(self, kind="", place=0, error=None):
        self.kind, self.place, self.error, self.seen = kind, place, error, {}

    def __enter__(self):
        AtUser.here = self
        return self

    def __exit__(self, *error):
        AtUser.here = None

    @staticmethod
    def reached(kind):
        if (one := AtUser.here) is not None:
            one.seen[kind] = one.seen.get(kind, 0) + 1
            seen = sum(one.seen.values()) if one.kind == ANY else one.seen[kind]
            if one.kind in (kind, ANY) and seen == one.place:
                raise one.error


class Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        AtUser.reached("function")
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        AtUser.reached("function's backward")
        return grad * (x.sigmoid() * (1 + x * (1 - x.sigmoid())))


class Own(nn.Module):
    """A layer of the user's."""

    def forward(self, x):
        AtUser.reached("forward")
        x = Silu.apply(x)
        AtUser.reached("forward")
        return x


def tensor_hook(module, args, result):
    AtUser.reached("forward hook")
    if result.requires_grad:
        result.register_hook(lambda grad: AtUser.reached("tensor hook"))


def hooked():
    """A net of which every layer has a hook of each kind."""
    model = fault_ways.net()
    model.insert(3, Own())
    model.insert(8, Own())
    for module in model:
        module.register_forward_pre_hook(lambda *given: AtUser.reached("forward pre hook"))
        module.register_forward_hook(tensor_hook)
        module.register_full_backward_pre_hook(lambda *given: AtUser.reached("backward pre hook"))
        module.register_full_backward_hook(lambda *given: AtUser.reached("backward hook"))
    return model


class OwnCodec:
    def compress(self, tensor, *, seed=0, stream=0):
        AtUser.reached("compress")
        return actcore.Compressed.of(self, tensor, [tensor.half()])

    def decompress(self, compressed):
        AtUser.reached("decompress")
        return compressed.payload[0].to(compressed.dtype)


def with_codec():
    model = fault_ways.net()  # around a layer with hooks of backward a plan keeps nothing that a codec could store
    return checkpoint.apply(model, checkpoint.plan(model, (X,)), codec=OwnCodec())


WAYS = {
    "level": {"level": "L1"},
    "lean": {"level": "lean"},
    "adaptive": {"level": "L2"},
    "swap": {"level": "swap"},
    "memory": {"memory": 0.5},
    "recomputed": {"level": "L0", "checkpoint": "optimal"},
    "recomputed level": {"level": "L1", "checkpoint": "optimal"},
    "Q-layers": {"level": "L0", "layers": {"level": "L2"}},
    "few bits": {"level": "L0", "activations": "fewbit", "linear": "randomized"},
}
KINDS = {
    *("forward pre hook", "forward hook", "backward pre hook", "backward hook", "tensor hook"),
    *("forward", "function", "function's backward"),
}


def structure(model):
    """What makes up a model, but for the objects of its layers: those that Q-layers are turned back into are others."""
    found = {}
    for path, module in model.named_modules():
        own = vars(module)
        tensors = [(name, id(one)) for kind in ("_parameters", "_buffers") for name, one in own[kind].items()]
        hooks = {name: list(one) for name, one in own.items() if name.endswith("_hooks")}
        found[path] = type(module), tensors, hooks, sorted(own), module.training
    return found


def made(way, steps=3):
    if way == "codec":
        model = with_codec()
    else:
        model = hooked() if way == "plain" else integrations.compress_model(hooked(), **WAYS[way])
    model.train()
    for _ in range(steps):
        step(model)
    return model


@pytest.mark.parametrize("way", [*WAYS, "codec", "plain"])
def test_an_error_in_what_is_the_users(way):
    model, twin = made(way), made(way)
    with AtUser() as counts:
        step(model)
    step(twin)
    assert set(counts.seen) == ({"compress", "decompress"} if way == "codec" else KINDS)
    trial = Trial(model, twin)
    with counting_alone():
        for kind, count in counts.seen.items():
            for place in places(count, 2):
                error = Boom(kind)
                injected = AtUser(kind, place, error)
                assert trial.fail((kind, place), injected, lambda found, error=error: found is error)
                trial.go_on((kind, place))
    assert trial.told == []


@pytest.mark.parametrize("way", ["memory", "recomputed"])
@pytest.mark.parametrize("kind", [AtUser, AtCall])
def test_an_interrupt_while_a_plan_is_made(way, kind):
    """In the first step the model is captured, plans are searched, and the chosen one's error is measured."""
    with kind(*([ANY] if kind is AtUser else [])) as counts:
        made(way, 1)
    count = sum(counts.seen.values()) if kind is AtUser else counts.seen
    for place in range(1, count + 1, -(-count // (50 if LONG else 2))):  # a plan is made in each
        trial, error = Trial(made(way, 0), made(way, 0), interrupts=True), KeyboardInterrupt("here")
        injected = AtUser(ANY, place, error) if kind is AtUser else AtCall(place, error)
        with counting_alone():
            reached = trial.fail(place, injected, lambda found, error=error: found is error)
            assert reached or kind is AtCall  # in a destructor
            trial.go_on(place)
        assert trial.told == []


CALLS = {
    "adapt": ("adaptive", lambda handle, closure: handle.adapt(closure, passes=2)),
    "gradient_error": ("level", lambda handle, closure: handle.gradient_error(closure)),
    "report": ("level", lambda handle, closure: handle.report(closure)),
    "monitor": ("level", lambda handle, closure: handle.monitor(closure, every=1)),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_error_in_a_closure(name):
    way, call = CALLS[name]
    model, twin = made(way), made(way)
    handle = integrations.compression(model)

    def closure(one=model):
        AtUser.reached("closure")
        loss = one(X).square().mean()
        AtUser.reached("closure")
        loss.backward()
        AtUser.reached("closure")

    def prepare():
        if name == "monitor":  # which calls the closure in front of the forward after the next one
            call(handle, closure)
            step(model)

    def work(one):
        if one is model and name != "monitor":
            call(handle, closure)
        else:
            step(one)

    prepare()
    with AtUser() as counts:
        work(model)
    if name == "adapt":  # which may have changed the bits
        call(integrations.compression(twin), lambda: closure(twin))
    handle.monitor(every=None)
    trial = Trial(model, twin)
    for place in range(1, counts.seen["closure"] + 1):
        prepare()
        error, trial.work = Boom(name), work
        with counting_alone():
            assert trial.fail(place, AtUser("closure", place, error), lambda found, error=error: found is error)
            handle.monitor(every=None)
            trial.work = step
            trial.go_on(place)
    assert trial.told == []


OPTIONS = {
    "level": (fault_ways.net, {"level": "L1"}),
    "plan": (fault_ways.net, {"level": "L0", "checkpoint": "optimal"}),
    "Q-layers": (fault_ways.net, {"level": "L1", "layers": {"level": "L2"}}),
    "few bits": (fault_ways.net, {"level": "L1", "activations": {"functions": "all"}, "linear": 0.5}),
    "chunked": (fault_ways.decoder, {"level": "L1", "layers": {"level": "L2"}, "loss": {"head": "head"}}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_interrupt_in_compress_model(name):
    """Nothing is attached half: the model is as before, and can be compressed; or all was done when it came."""
    make, options = OPTIONS[name]
    twin = integrations.compress_model(make(), **options).train()
    step(twin)

    def made():
        model = make().train()
        return model, of_thread(), structure(model)

    def compress(made, fault):
        with fault:
            integrations.compress_model(made[0], **options)

    told = []
    for (model, thread, before), fault in interrupted_anywhere(compress, made, quick=15):
        changed = differing(thread, of_thread())
        try:
            integrations.compression(model)
        except ValueError:
            changed += differing(before, structure(model))
            integrations.compress_model(model, **options)
        told += [f"{fault.place} {fault.where}: {changed}"] if changed else []
        step(model)
        if not same(fault_ways.gradients(model), fault_ways.gradients(twin)):
            told.append(f"{fault.place} {fault.where}: the step differs")
    assert told == []


@pytest.mark.parametrize("name", OPTIONS)
def test_an_interrupt_in_restore_model(name):
    """The model is compressed, and what is left of that is undone by the next call; or it is as it was."""
    make, options = OPTIONS[name]
    plain, told = make().train(), []
    step(plain)

    def compressed():
        model = make().train()
        before = structure(model)
        return integrations.compress_model(model, **options), before

    def restore(compressed, fault):
        with fault:
            integrations.restore_model(compressed[0])

    for (model, before), fault in interrupted_anywhere(restore, compressed, quick=15):
        if fault.where:
            with contextlib.suppress(ValueError):  # it is not compressed
                integrations.restore_model(model)
        if changed := differing(before, structure(model)):
            told.append(f"{fault.place} {fault.where}: {changed}")
        step(model)
        if not same(fault_ways.gradients(model), fault_ways.gradients(plain)):
            told.append(f"{fault.place} {fault.where}: the step differs")
    assert told == []
