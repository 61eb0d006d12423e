"""The dtypes that codecs take."""

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""What is rounded: ``GroupAffine``, ``GroupAffineRows``, ``Float8``; and what ``Positive`` takes."""

INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
"""What ``Narrow`` stores; ``BitMask`` takes these and ``FLOATS``."""
