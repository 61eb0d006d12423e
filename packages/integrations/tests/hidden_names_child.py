"""Hides each of the private names of torch that it is given, in a fork of its own, and says what still works.

Run as ``python hidden_names_child.py NAMES_FILE [PATH ...]``: a line of JSON for each path.
"""

import importlib.util
import json
import os
import sys
import traceback
import warnings

import torch
from torch import nn


def hide(file, gone):
    """Has ``integrations._utils.torch_names`` not find a name. Torch itself keeps it."""
    spec = importlib.util.spec_from_file_location("integrations._utils.torch_names", file)
    names = sys.modules["integrations._utils.torch_names"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(names)
    get = names.Name.get

    def get_if_there(name):
        if name.path == gone:
            raise ImportError(name.why)
        return get(name)

    names.Name.get = get_if_there


def net():
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64)).train()


def trained(model, steps=1):
    """Steps of a model, after which it has gradients."""
    for _ in range(steps):
        model(torch.randn(64, 64)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def features():
    """What is tried, by name. Imported late: the name is hidden by then."""
    import integrations
    from integrations import fewbit, qmodules
    from integrations.losses import linear_cross_entropy

    def level(name, steps=1, **options):
        def run():
            model = integrations.compress_model(net(), name, **options)
            trained(model, steps)
            assert integrations.compression(model).report().ratio > 1
            integrations.restore_model(model)

        return run

    def plan():
        model = net()
        trained(integrations.apply(model, integrations.plan(model, torch.randn(64, 64), memory=0.9, error=0)))

    def loss():
        hidden, weight = torch.randn(32, 16, requires_grad=True), torch.randn(100, 16, requires_grad=True)
        linear_cross_entropy(hidden, weight, torch.zeros(32, dtype=torch.long)).backward()

    def block():
        model = net()
        with integrations.compress(model):
            trained(model)

    return {
        "level": level("L1"),
        "lean": level("lean"),
        "adaptive": level("L2", steps=3),
        "block": block,
        "plan": plan,
        "loss": loss,
        "fewbit": lambda: trained(fewbit.convert(net(), linear=0.5)),
        "qmodules": lambda: trained(qmodules.QModule(net())),
        "forecast": lambda: integrations.forecast(net(), torch.randn(64, 64)),
    }


def outcome(run):
    """Empty where it works; otherwise the error, with those that it came from."""
    try:
        run()
    except Exception:
        return traceback.format_exc()
    return ""


def tried(path):
    """What came of each feature in a process in which a name is hidden."""
    answer, tell = os.pipe()
    if not os.fork():
        hide(sys.argv[1], path)
        told = {"import": outcome(features)}
        told |= {} if told["import"] else {name: outcome(run) for name, run in features().items()}
        with os.fdopen(tell, "w") as pipe:
            json.dump(told, pipe)
        os._exit(0)
    os.close(tell)
    with os.fdopen(answer) as pipe:
        text = pipe.read()
    os.wait()
    return json.loads(text or '{"process": "it ended"}')


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for path in sys.argv[2:]:
        print(json.dumps({"path": path, **tried(path)}), flush=True)
