"""``python -m bench kernels``: codecs and fused operators beside a copy, plain PyTorch and other libraries.

cases.py            the table of what is measured; a new codec or operator needs a line there
contenders.py       what runs side by side in a case, and the bytes that each must move
plain.py, rivals.py the same codec in plain PyTorch; the nearest thing in other libraries
measure.py          cases x dtypes x sizes
results.py          what is recorded
report.py, chart.py tables and the picture
estimate.py, estimate_report.py, sass.py    what compiled code says of a GPU that is not there: nothing is run
copies.py           the short form that ``python -m bench gnn`` adds to its results
"""

from bench.suites.gnn.kernel_time import TARGET, KernelTime, time_kernels

__all__ = ["TARGET", "KernelTime", "time_kernels"]
