"""Drop-in layers: subclasses of torch's that save in few bits."""

from integrations.qmodules.layers.activations import QGELU, QLeakyReLU, QReLU, QSiLU
from integrations.qmodules.layers.attention import QMultiheadAttention
from integrations.qmodules.layers.base import QLayer
from integrations.qmodules.layers.conv import (
    QConv1d,
    QConv2d,
    QConv3d,
    QConvTranspose1d,
    QConvTranspose2d,
    QConvTranspose3d,
)
from integrations.qmodules.layers.dropout import QDropout
from integrations.qmodules.layers.linear import QEmbedding, QLinear
from integrations.qmodules.layers.norms import (
    QBatchNorm1d,
    QBatchNorm2d,
    QBatchNorm3d,
    QGroupNorm,
    QLayerNorm,
    QRMSNorm,
)
from integrations.qmodules.layers.pooling import QAdaptiveAvgPool2d, QAvgPool2d, QMaxPool1d, QMaxPool2d, QMaxPool3d
from integrations.qmodules.layers.sync_norm import QSyncBatchNorm

__all__ = [
    "QGELU",
    "QAdaptiveAvgPool2d",
    "QAvgPool2d",
    "QBatchNorm1d",
    "QBatchNorm2d",
    "QBatchNorm3d",
    "QConv1d",
    "QConv2d",
    "QConv3d",
    "QConvTranspose1d",
    "QConvTranspose2d",
    "QConvTranspose3d",
    "QDropout",
    "QEmbedding",
    "QGroupNorm",
    "QLayer",
    "QLayerNorm",
    "QLeakyReLU",
    "QLinear",
    "QMaxPool1d",
    "QMaxPool2d",
    "QMaxPool3d",
    "QMultiheadAttention",
    "QRMSNorm",
    "QReLU",
    "QSiLU",
    "QSyncBatchNorm",
]
