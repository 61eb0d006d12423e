"""Normalizations, softmax, moments, losses and recurrent layers: operators that combine elements of a tensor."""

from __future__ import annotations

from integrations.policies.needs import Need, Rule
from integrations.policies.operators.operator import Aten, Gain, Kernel, Operator, aten
from integrations.policies.operators.pointwise import BOUNDED, EXPONENTIAL, JUMPS, MOMENT

_NORM = Rule(input=Need.NORM, why="statistics or scale of a normalization: small, and every gradient uses them")
# Where torch composes it of other operators, it saves its input once more, as that is cast, and as it is normalised.
_RMS_NORM = Rule(input=Need.NORM, result=Need.MOMENT, why=_NORM.why)
_CROSS_ENTROPY = Rule(why="backward takes exp() of it, or it is a gradient that a chunked loss computes in the forward")

NORMS = (
    Operator(
        "batch_norm",
        _NORM,
        (
            Aten("native_batch_norm", Kernel.FUNCTION),
            *aten("_native_batch_norm_legit _native_batch_norm_legit_functional"),
            *aten("cudnn_batch_norm _batch_norm_with_update"),
        ),
        (Aten("native_batch_norm_backward", Kernel.FUNCTION, saved=1), Aten("cudnn_batch_norm_backward", saved=0)),
        gain=Gain.ONE,
    ),
    Operator(
        "layer_norm",
        _NORM,
        (Aten("native_layer_norm", Kernel.FUNCTION, repeated=(0,)),),
        (Aten("native_layer_norm_backward", Kernel.FUNCTION, saved=1),),
        gain=Gain.ONE,
        by_row=True,
    ),
    Operator(
        "group_norm",
        _NORM,
        aten("native_group_norm", Kernel.FUNCTION),
        (Aten("native_group_norm_backward", Kernel.FUNCTION, saved=1),),
        gain=Gain.ONE,
    ),
    Operator("instance_norm", _NORM),
    Operator(
        "rms_norm",
        _RMS_NORM,
        (Aten("rms_norm"), Aten("_fused_rms_norm", repeated=(0,))),
        (Aten("_fused_rms_norm_backward", saved=1),),
        gain=Gain.ONE,
        by_row=True,
    ),
)

_SOFTMAX = (
    Operator(
        "softmax softmin",
        BOUNDED,
        aten("_softmax _safe_softmax", Kernel.FUNCTION),
        (Aten("_softmax_backward_data", Kernel.FUNCTION, saved=1, role="result"),),
    ),
    Operator("log_softmax", EXPONENTIAL, aten("_log_softmax", Kernel.FUNCTION)),
    Operator("logsumexp", EXPONENTIAL, aten("logsumexp", Kernel.FUNCTION)),
    Operator("gumbel_softmax", EXPONENTIAL, discontinuous=True),
    Operator("nll_loss", EXPONENTIAL),
    Operator("cross_entropy", _CROSS_ENTROPY),
)

_OTHERS = (
    Operator("var var_mean", MOMENT),
    Operator("std std_mean norm normalize linalg_norm linalg_vector_norm", EXPONENTIAL),
    Operator("prod cumprod", JUMPS),
    Operator("amax amin", searches=True, compares=True),
    Operator("aminmax nanmedian scatter_reduce index_reduce segment_reduce", searches=True),
    Operator("mse_loss logcumsumexp", smooth=True),
    Operator("lstm gru rnn_tanh lstm_cell gru_cell rnn_tanh_cell", smooth=True),
    Operator("fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft fft_fft2 fft_ifft2 fft_rfft2", smooth=True),
    Operator("fft_irfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn", smooth=True),
)

REDUCTIONS = (*NORMS, *_SOFTMAX, *_OTHERS)
