"""Ways to train a language model of transformers: checkpoints, levels, plans, and the loss in chunks beside each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from bench.errors import DoesNotApply
from bench.models.decoders import base_decoder
from bench.models.subject import Subject, needs
from bench.ways.general import PLAIN, Forward, Surroundings, Way, compressed, plain, planned, planned_name
from bench.ways.general import WAYS as GENERAL

CHECKPOINTS = "gradient_checkpointing_enable()"
SELECTIVE = "selective checkpoints (torch)"
REMAT = "each block (torch_remat)"
CUT = "cut-cross-entropy"
CHUNKED = "chunked"
LEAST = "plan, least, exact"

_BUDGET = 0.3  # of a plain step's peak, whose loss is in chunks, too
BOUNDS = (0.0, 0.1)
"""Of the gradient's error, of plans within that."""


def beside(way: str) -> str:
    """The name of a way with the loss in chunks beside it."""
    return f"{way} + {CHUNKED}"


def planned_beside(bound: float) -> str:
    """That of a plan."""
    return beside(planned_name(_BUDGET, bound))


def _checkpointed(subject: Subject, **options: Any) -> tuple[Forward, Surroundings]:
    """Each block's forward is run again in backward, as transformers has it, with options of torch's checkpoint.

    Raises:
        DoesNotApply: the model is none of transformers.
    """
    model: Any = subject.model
    if not hasattr(model, "gradient_checkpointing_enable"):
        raise DoesNotApply("the model has no gradient_checkpointing_enable()")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False, **options})
    return plain(subject)


def _selective(subject: Subject) -> tuple[Forward, Surroundings]:
    """The same, but for products of matrices and attention, whose results are kept."""
    operators = torch.ops.aten
    kept = [
        operators.mm.default,
        operators.addmm.default,
        operators._scaled_dot_product_flash_attention_for_cpu.default,
    ]
    return _checkpointed(subject, context_fn=partial(create_selective_checkpoint_contexts, kept))


def _checkpointed_beside(level: str, subject: Subject) -> tuple[Forward, Surroundings]:
    """Checkpoints, whose own inputs are stored as the level says, beside the loss in chunks."""
    _checkpointed(subject)
    return compressed(level, subject, loss=CHUNKED)


def _cut(subject: Subject) -> tuple[Forward, Surroundings]:
    """The body by itself, and the loss by cut-cross-entropy's code for all devices: its kernels are for CUDA."""
    model, loss = base_decoder(subject.model), cut_cross_entropy()
    softcap = getattr(model.config, "final_logit_softcapping", None)

    def forward(input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        hidden = model.model(input_ids=input_ids).last_hidden_state
        return SimpleNamespace(loss=loss(hidden, model.lm_head.weight, labels, shift=True, softcap=softcap))

    return forward, plain(subject)[1]


def cut_cross_entropy() -> Callable[..., Tensor]:
    """cut-cross-entropy's loss (Wijmans et al., ICLR 2025), of hidden states, the head's weight and labels.

    Raises:
        MissingLibrary: it is not installed.
    """
    return partial(needs("cut_cross_entropy", "rivals").linear_cross_entropy, impl="torch_compile")


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        PLAIN: GENERAL[PLAIN],
        CHECKPOINTS: Way(_checkpointed, ours=False),
        SELECTIVE: Way(_selective, ours=False),
        REMAT: GENERAL[REMAT],
        CUT: Way(_cut, ours=False, library="cut_cross_entropy"),
        "L1": GENERAL["L1"],
        "lean": GENERAL["lean"],
        CHUNKED: Way(partial(compressed, "L0", loss=CHUNKED)),
        beside(CHECKPOINTS): Way(partial(_checkpointed_beside, "L0")),
        beside("L1"): Way(partial(compressed, "L1", loss=CHUNKED)),
        beside("lean"): Way(partial(compressed, "lean", loss=CHUNKED)),
        beside(f"{CHECKPOINTS} + lean"): Way(partial(_checkpointed_beside, "lean")),
        **{planned_beside(bound): planned(_BUDGET, bound, loss=CHUNKED) for bound in BOUNDS},
        beside(LEAST): Way(partial(compressed, None, error=0, loss=CHUNKED)),
    }
)
"""By name. Levels, plans and ``loss`` are those of ``compress_model``."""

MAIN = (PLAIN, CHECKPOINTS, CUT, CHUNKED, beside(CHECKPOINTS), beside("L1"), beside("lean"), planned_beside(0.0))
"""Those that are each the best of a kind somewhere."""

FEW = (PLAIN, CHECKPOINTS, CHUNKED, beside(CHECKPOINTS), beside("lean"))
"""Those of steps that take many seconds."""


ALL_WAYS: Mapping[str, Way] = MappingProxyType({**GENERAL, **WAYS})
"""Those for any model, and those for decoders, by name."""

CONTEXT = (PLAIN, CHECKPOINTS, CHUNKED, beside("lean"), beside(LEAST), beside(CHECKPOINTS))
"""Those that a decoder's tokens are searched in by default. A plan that rounds is none of them: its first step takes
what a plain one does."""


def label(name: str) -> str:
    """Return a way's name for tables, with a star where it is not this project's."""
    way = ALL_WAYS.get(name)
    return name if way is None or way.ours or name == PLAIN else f"{name} *"
