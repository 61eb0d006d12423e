"""Drop-in layers that keep what backward needs in a few bits: ActNN (Chen et al., ICML 2021), on the CPU, too.

from integrations import qmodules

model = qmodules.QModule(model, level="L3")
...train as before...
print(qmodules.summary(model))
"""

from integrations.qmodules.config import config, set_optimization_level
from integrations.qmodules.convert import QModule, Summary, is_converted, restore_model, revert, summary
from integrations.qmodules.data import DataLoader
from integrations.qmodules.layers import (
    QGELU,
    QAdaptiveAvgPool2d,
    QAvgPool2d,
    QBatchNorm1d,
    QBatchNorm2d,
    QBatchNorm3d,
    QConv1d,
    QConv2d,
    QConv3d,
    QConvTranspose1d,
    QConvTranspose2d,
    QConvTranspose3d,
    QDropout,
    QEmbedding,
    QGroupNorm,
    QLayer,
    QLayerNorm,
    QLeakyReLU,
    QLinear,
    QMaxPool1d,
    QMaxPool2d,
    QMaxPool3d,
    QMultiheadAttention,
    QReLU,
    QRMSNorm,
    QSiLU,
    QSyncBatchNorm,
)
from integrations.qmodules.levels import LEVELS, QLevel
from integrations.qmodules.scheme import ModelPrecision, QBNScheme, QScheme, model_precision

__all__ = [
    "LEVELS",
    "QGELU",
    "DataLoader",
    "ModelPrecision",
    "QAdaptiveAvgPool2d",
    "QAvgPool2d",
    "QBNScheme",
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
    "QLevel",
    "QLinear",
    "QMaxPool1d",
    "QMaxPool2d",
    "QMaxPool3d",
    "QModule",
    "QMultiheadAttention",
    "QRMSNorm",
    "QReLU",
    "QScheme",
    "QSiLU",
    "QSyncBatchNorm",
    "Summary",
    "config",
    "is_converted",
    "model_precision",
    "restore_model",
    "revert",
    "set_optimization_level",
    "summary",
]
