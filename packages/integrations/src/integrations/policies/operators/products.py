"""Matrix products, convolutions and attention.

A linear operator's input enters only the gradient of the other operand, linearly, so an unbiased rounding of it leaves
that gradient unbiased.
"""

from __future__ import annotations

from integrations.policies.needs import Need, Rule
from integrations.policies.operators.operator import Aten, Kernel, Operator

# Linear in each operand, whatever copies or reshapes the operator makes on the way.
LINEAR = Rule(Need.LINEAR, Need.LINEAR, Need.LINEAR, Need.LINEAR)
ATTENTION = Rule(recomputed=Need.ATTENTION, why="torch's own attention normalizes over the exact query and key")
_CHECKPOINT = Rule(Need.RECOMPUTED, why="an input of a checkpoint that is a mask, or may have one in it: kept exactly")
_SKETCH = Rule(why="a random sketch instead of a linear layer's input, of the requested size")

PRODUCTS = (
    Operator("mm", LINEAR, (Aten("mm", Kernel.PRODUCT, factors=(0, 1), repeated=(0, 1)),)),
    Operator("bmm", LINEAR, (Aten("bmm", Kernel.PRODUCT, factors=(0, 1), repeated=(0, 1)),)),
    Operator("addmm", LINEAR, (Aten("addmm", Kernel.PRODUCT, factors=(1, 2), repeated=(0, 1, 2)),)),
    Operator("baddbmm", LINEAR, (Aten("baddbmm", Kernel.PRODUCT, factors=(1, 2), repeated=(0, 1, 2)),)),
    Operator("mv", LINEAR, (Aten("mv", factors=(0, 1), repeated=(0, 1)),)),
    Operator("dot", LINEAR, (Aten("dot", factors=(0, 1)),)),
    Operator("linear matmul addmv addbmm vdot inner outer ger addr einsum tensordot kron", LINEAR),
    Operator("sparse_mm spmm sspaddmm hspmm smm chain_matmul grouped_mm", LINEAR),
    Operator(
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
        LINEAR,
        (Aten("convolution", Kernel.CONVOLUTION, repeated=(0,)),),
        (Aten("convolution_backward", Kernel.CONVOLUTION_BACKWARD, factors=(1,)),),
    ),
    # The factors are value and result. Backward is not linear in query and key, since it divides by the sum of their
    # exact softmax, unless attention is recomputed (``aten_attention``).
    Operator(
        "scaled_dot_product_attention",
        ATTENTION,
        backward=(
            Aten("_scaled_dot_product_flash_attention_for_cpu_backward", factors=(3, 4)),
            Aten("_scaled_dot_product_flash_attention_backward", factors=(3, 4)),
            Aten("_scaled_dot_product_cudnn_attention_backward", factors=(3, 4)),
            Aten("_scaled_dot_product_efficient_attention_backward", factors=(3, 5)),
            Aten("_scaled_dot_product_fused_attention_overrideable_backward", factors=(3, 6)),
            Aten("_flash_attention_backward", factors=(3, 4)),
            Aten("_cudnn_attention_backward", factors=(3, 4)),
            Aten("_efficient_attention_backward", factors=(3, 5)),
        ),
    ),
    Operator("checkpoint", _CHECKPOINT),
    Operator("integrations::linear_randomized", _SKETCH),
)
