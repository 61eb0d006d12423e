"""integrations: training in less memory for any PyTorch model, the training loop unchanged.

import integrations

integrations.compress_model(model, memory="8GiB")  # exact; or a level, which rounds: level="L1"
...train as before...
print(integrations.compression(model).report())

``integrations.pyg`` is the same for PyTorch Geometric models.
"""

from integrations import checkpoint
from integrations._version import __version__
from integrations.api.compress import compress, compress_model, compression, restore_model
from integrations.api.handle.compression import Compression
from integrations.api.handle.gradient_error import GradientError
from integrations.api.plan import apply, plan
from integrations.api.ranks import gather_report
from integrations.estimate.fit import Fit, explain_oom, fit
from integrations.estimate.forecast import forecast
from integrations.planner.plan import Plan
from integrations.planner.sensitivity.bit_plan import Allotment, BitPlan
from integrations.policies.levels import LEVELS, Level
from integrations.report import RankSummary, Report, Row

__all__ = [
    "LEVELS",
    "Allotment",
    "BitPlan",
    "Compression",
    "Fit",
    "GradientError",
    "Level",
    "Plan",
    "RankSummary",
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
    "gather_report",
    "plan",
    "restore_model",
]
