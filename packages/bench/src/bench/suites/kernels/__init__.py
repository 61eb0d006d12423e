"""``python -m bench kernels``: codecs and fused operators beside a copy, plain PyTorch and other libraries."""
