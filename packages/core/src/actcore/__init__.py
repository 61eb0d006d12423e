"""actcore: tensors in fewer bytes, for what autograd keeps between forward and backward.

    c = actcore.compress(x, actcore.GroupAffine(bits=4), seed=0, stream=0)
    y = actcore.decompress(c)          # same shape, dtype, device and strides

The raw operators are ``torch.ops.actcore.*``; ``python -m actcore`` prints what was built and checks it.
"""

import torch as _torch

from actcore import stored
from actcore._library import missing_on
from actcore._version import __version__
from actcore.allocation import Allocation, allocate, allocate_bits
from actcore.autograd import save_for_backward, saved_tensors_of
from actcore.bits import pack_bits, unpack_bits
from actcore.codec import Codec, compress, decompress
from actcore.codecs import BitMask, Float8, GroupAffine, GroupAffineRows, Narrow, Offload, Positive, Raw
from actcore.compiling import uncompiled
from actcore.compressed import Compressed
from actcore.device_streams import in_cuda_graph, replayable
from actcore.dtypes import FLOATS, INTEGERS
from actcore.forms import Form
from actcore.functional import (
    dropout,
    in_memory_order,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    relu,
    restored,
    round_to_levels,
    stepwise,
)
from actcore.graph_hooks import graph_hooks
from actcore.info import build_info
from actcore.kept import Kept
from actcore.layout import Layout
from actcore.noise import Streams, current_rank, stream_of
from actcore.plans import CheckpointPlan, CheckpointPlans, checkpoint_plans, most_exact_plan
from actcore.saved_hooks import hooks, saved_tensors
from actcore.saved_tensor import Policy, SavedTensor
from actcore.segments import CheckpointSegments, checkpoint_segments
from actcore.simulation import StepUsage, simulate
from actcore.steps import LevelFit, StepFit, fit_levels, fit_steps
from actcore.training_step import TrainingStep

__all__ = [
    "FLOATS",
    "INTEGERS",
    "Allocation",
    "BitMask",
    "CheckpointPlan",
    "CheckpointPlans",
    "CheckpointSegments",
    "Codec",
    "Compressed",
    "Float8",
    "Form",
    "GroupAffine",
    "GroupAffineRows",
    "Kept",
    "Layout",
    "LevelFit",
    "Narrow",
    "Offload",
    "Policy",
    "Positive",
    "Raw",
    "SavedTensor",
    "StepFit",
    "StepUsage",
    "Streams",
    "TrainingStep",
    "__version__",
    "allocate",
    "allocate_bits",
    "build_info",
    "checkpoint_plans",
    "checkpoint_segments",
    "compress",
    "current_rank",
    "decompress",
    "dropout",
    "fit_levels",
    "fit_steps",
    "graph_hooks",
    "hooks",
    "in_cuda_graph",
    "in_memory_order",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "missing_on",
    "most_exact_plan",
    "pack_bits",
    "relu",
    "replayable",
    "restored",
    "round_to_levels",
    "save_for_backward",
    "saved_tensors",
    "saved_tensors_of",
    "simulate",
    "stepwise",
    "stored",
    "stream_of",
    "uncompiled",
    "unpack_bits",
]

# A saved Compressed holds tensors and these plain classes, so torch.load may read it with weights_only=True.
_torch.serialization.add_safe_globals(
    [Compressed, Layout, GroupAffine, GroupAffineRows, Float8, BitMask, Positive, Narrow, Offload, Raw]
)
