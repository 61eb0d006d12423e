"""timm's image models: a small variant of each family, for 10 classes, its weights as timm draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F

from .case import Case

BATCH = 8
SIDE = 64  # pixels, but for models that take no image so small

# By family: timm's name, and the least side in pixels where that is more than SIDE.
_MODELS: Mapping[str, tuple[str, int]] = {
    # convolutions
    "ResNet": ("resnet18", SIDE),
    "ResNet v2": ("resnetv2_18", SIDE),
    "ResNeXt": ("resnext26ts", SIDE),
    "Res2Net": ("res2net50_14w_8s", SIDE),
    "ResNeSt": ("resnest14d", SIDE),
    "SENet": ("legacy_seresnet18", SIDE),
    "SKNet": ("skresnet18", SIDE),
    "RegNet": ("regnetx_002", SIDE),
    "DenseNet": ("densenet121", SIDE),
    "DPN": ("dpn48b", SIDE),
    "EfficientNet": ("efficientnet_b0", SIDE),
    "MobileNet v2": ("mobilenetv2_050", SIDE),
    "MnasNet": ("mnasnet_small", SIDE),
    "MobileNet v3": ("mobilenetv3_small_050", SIDE),
    "MobileNet v4": ("mobilenetv4_conv_small_050", SIDE),
    "GhostNet": ("ghostnet_050", SIDE),
    "VGG": ("vgg11", SIDE),
    "Inception": ("inception_v3", 96),
    "Xception": ("xception41", SIDE),
    "DLA": ("dla46_c", SIDE),
    "HRNet": ("hrnet_w18_small", SIDE),
    "NFNet": ("nf_regnet_b0", SIDE),
    "RepVGG": ("repvgg_a0", SIDE),
    "MobileOne": ("mobileone_s0", SIDE),
    "VoVNet": ("ese_vovnet19b_slim", SIDE),
    "CSPNet": ("cspresnet50", SIDE),
    "DarkNet": ("darknet17", SIDE),
    "ReXNet": ("rexnet_100", SIDE),
    "HGNet": ("hgnetv2_b0", SIDE),
    "ConvNeXt": ("convnext_atto", SIDE),
    "ConvNeXt v2": ("convnextv2_atto", SIDE),
    "InceptionNeXt": ("inception_next_atto", SIDE),
    "RepViT": ("repvit_m0_9", SIDE),
    "StarNet": ("starnet_s050", SIDE),
    "FocalNet": ("focalnet_tiny_srf", SIDE),
    "MambaOut": ("mambaout_femto", SIDE),
    # attention
    "ViT": ("vit_tiny_patch16_224", SIDE),
    "DeiT": ("deit_tiny_distilled_patch16_224", SIDE),
    "BEiT": ("beit_base_patch16_224", SIDE),
    "EVA-02": ("eva02_tiny_patch14_224", 70),
    "Swin": ("swin_tiny_patch4_window7_224", SIDE),
    "Swin v2": ("swinv2_tiny_window8_256", SIDE),
    "CaiT": ("cait_xxs24_224", SIDE),
    "XCiT": ("xcit_nano_12_p16_224", SIDE),
    "CoaT": ("coat_lite_tiny", SIDE),
    "CrossViT": ("crossvit_tiny_240", 240),
    "PiT": ("pit_ti_224", SIDE),
    "Twins": ("twins_svt_small", SIDE),
    "PVT v2": ("pvt_v2_b0", SIDE),
    "VOLO": ("volo_d1_224", SIDE),
    "DaViT": ("davit_tiny", SIDE),
    "Hiera": ("hiera_tiny_224", SIDE),
    "TinyViT": ("tiny_vit_5m_224", SIDE),
    # convolutions and attention
    "LeViT": ("levit_128s", SIDE),
    "EfficientFormer": ("efficientformer_l1", 224),
    "EfficientFormer v2": ("efficientformerv2_s0", SIDE),
    "EfficientViT": ("efficientvit_b0", SIDE),
    "MobileViT": ("mobilevit_xxs", SIDE),
    "MaxViT": ("maxvit_rmlp_pico_rw_256", SIDE),
    "EdgeNeXt": ("edgenext_xx_small", SIDE),
    "FastViT": ("fastvit_t8", SIDE),
    # neither
    "PoolFormer": ("poolformer_s12", SIDE),
    "MLP-Mixer": ("mixer_s32_224", SIDE),
    "gMLP": ("gmlp_ti16_224", SIDE),
    "ResMLP": ("resmlp_12_224", SIDE),
    "Sequencer": ("sequencer2d_s", SIDE),
}

_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # The smallest has 86 million parameters; a BEiT as wide as ViT-tiny has the same operators.
    "beit_base_patch16_224": {"embed_dim": 192, "depth": 12, "num_heads": 3},
}


def entries() -> Iterator[tuple[str, str, Callable[[], Case]]]:
    """Family, name and maker of each."""
    for family, (name, side) in _MODELS.items():
        yield family, name, partial(_case, name, side)


def _case(name: str, side: int) -> Case:
    timm = import_module("timm")
    model = _of_side(timm, name, side)
    x, y = torch.randn(BATCH, 3, side, side), torch.randint(10, (BATCH,))
    return Case(model.train(), lambda: F.cross_entropy(model(x), y), f"{BATCH} at {side} x {side}")


def _of_side(timm: Any, name: str, side: int) -> Any:
    """Transformers want to know the side; other models have no such option, and take any."""
    options = dict(_OPTIONS.get(name, {}), num_classes=10)
    try:
        return timm.create_model(name, img_size=side, **options)
    except TypeError:
        return timm.create_model(name, **options)
