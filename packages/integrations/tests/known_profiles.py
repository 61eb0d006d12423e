"""Profiles of trainings that are alike, captured once: tests of ``fit`` ask about one model with many memories."""

from torch.utils._pytree import tree_flatten

from integrations.estimate.fit.profiles import Profiles
from integrations.planner import plan_with_stores

KNOWN = {}
"""The profiles and plans of earlier tests, by the training that they are of."""


class KnownProfiles(Profiles):
    """Profiles that take a capture, or a plan, of an earlier training of equal models and inputs.

    What ``fit`` makes of them, and how it comes to its answer, is as without.
    """

    def _captured(self, training, model, way, chunked):
        key = described(training, model), way, chunked
        if key not in KNOWN:
            KNOWN[key] = super()._captured(training, model, way, chunked)
        return KNOWN[key]

    def plan(self, error, chunked, sharded):
        rates = plan_with_stores.calibrated, self._device  # other tests exchange the function
        key = described(self.training, self.training.model), rates, error, chunked, sharded
        if key not in KNOWN:
            plan = super().plan(error, chunked, sharded)
            KNOWN[key] = plan, dict(plan.others)
        plan, others = KNOWN[key]
        plan.others.update(others)  # which ``fit`` empties as it shows them
        return plan


def described(training, model):
    """All that a capture depends on."""
    modules = [(name, type(module), module.extra_repr()) for name, module in model.named_modules()]
    parts = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    tensors = [(name, part.shape, part.dtype, part.device, part.requires_grad) for name, part in parts]
    gradients = [part.grad is None for part in model.parameters()]
    config = str(getattr(model, "config", ""))
    inputs = [(one.shape, one.dtype, one.device, [] if one.is_meta else one.tolist()) for one in training.tensors]
    inputs.append(tree_flatten((training.args, training.kwargs))[1])
    return str((modules, tensors, gradients, config, inputs, training.autocast, training.together)), training.loss
