"""integrations: training in less memory for any PyTorch model, the training loop unchanged.

import integrations

integrations.compress_model(model, memory="8GiB")  # exact; or a level, which rounds: level="L1"
...train as before...
print(integrations.compression(model).report())

``integrations.pyg`` is the same for PyTorch Geometric models.
"""

from integrations import checkpoint
from integrations._adaptive.bit_plan import Allotment, BitPlan
from integrations._fits import Fit, explain_oom, fit
from integrations._handle.compression import Compression
from integrations._handle.gradient_error import GradientError
from integrations._planning.plan import Plan
from integrations._version import __version__
from integrations.attach import compress, compress_model, compression, restore_model
from integrations.forecast import forecast
from integrations.one_plan import apply, plan
from integrations.report import Report, Row
from integrations.rules.levels import LEVELS, Level

__all__ = [
    "LEVELS",
    "Allotment",
    "BitPlan",
    "Compression",
    "Fit",
    "GradientError",
    "Level",
    "Plan",
    "Report",
    "Row",
    "__version__",
    "apply",
    "checkpoint",
    "compress",
    "compress_model",
    "compression",
    "explain_oom",
    "fit",
    "forecast",
    "plan",
    "restore_model",
]
