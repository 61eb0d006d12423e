"""24 nets of four libraries to compile with inductor: of each architecture a few narrow blocks, with inputs so large
that activations outweigh parameters. Random weights; a library that is missing skips."""

from functools import partial

import torch
from torch import nn

from .libraries import library_or_skip

CLASSES = 4
IMAGES, SIDE = 8, 32
SEQUENCES, LENGTH = 8, 32
NODES, EDGES, FEATURES = 512, 2048, 16

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
WIDTHS = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1}
TEXT = {"vocab_size": 64, **WIDTHS, **SPECIAL}
GROUPED = {**TEXT, "num_key_value_heads": 2}
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}


def tokens():
    return torch.randint(5, 64, (SEQUENCES, LENGTH))


def language():
    ids = tokens()
    return {"input_ids": ids, "labels": ids.clone()}


def padded():
    lengths = torch.arange(SEQUENCES).mul(3).add(8)[:, None]
    return {
        "input_ids": tokens(),
        "attention_mask": (torch.arange(LENGTH) < lengths).long(),
        "labels": torch.arange(SEQUENCES) % 2,
    }


def pictures():
    return {"pixel_values": torch.randn(IMAGES, 3, SIDE, SIDE), "labels": torch.arange(IMAGES) % 2}


def segmented():
    return {
        "pixel_values": torch.randn(IMAGES, 3, 2 * SIDE, 2 * SIDE),
        "labels": torch.randint(2, (IMAGES, 2 * SIDE, 2 * SIDE)),
    }


# By name: the configuration, the model, fields, and the inputs of a step.
TRANSFORMERS = {
    "bert, padded": ("BertConfig", "BertForSequenceClassification", TEXT, padded),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"vocab_size": 64, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 4} | SPECIAL,
        language,
    ),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**GROUPED, "num_hidden_layers": 2}, language),
    "gemma 2": ("Gemma2Config", "Gemma2ForCausalLM", {**GROUPED, "head_dim": 8}, language),
    "qwen 3": ("Qwen3Config", "Qwen3ForCausalLM", {**GROUPED, "head_dim": 8}, language),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {**T5, "decoder_start_token_id": 0, "use_cache": False},
        lambda: {"input_ids": tokens(), "labels": tokens()},
    ),
    "vit": (
        "ViTConfig",
        "ViTForImageClassification",
        {**WIDTHS, "image_size": SIDE, "patch_size": 4},
        pictures,
    ),
    "segformer": (
        "SegformerConfig",
        "SegformerForSemanticSegmentation",
        {"num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [8, 16], "decoder_hidden_size": 16}
        | {"sr_ratios": [4, 2], "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2]}
        | {"mlp_ratios": [2, 2], "num_labels": 2},
        segmented,
    ),
}


def make_transformers(name):
    transformers = library_or_skip("transformers")
    config, model, fields, inputs = TRANSFORMERS[name]
    return getattr(transformers, model)(getattr(transformers, config)(**fields)), (), inputs()


# By name: fields.
TIMM = {
    "resnet18": {"layers": (1, 1, 1, 1), "channels": (8, 8, 16, 16)},
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16), "patch_size": 2},
    "vit_tiny_patch16_224": {"img_size": SIDE, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2},
    "swin_tiny_patch4_window7_224": {
        "img_size": SIDE,
        "patch_size": 2,
        "window_size": 4,
        "embed_dim": 16,
        "depths": (2, 1),
        "num_heads": (2, 2),
    },
    "xcit_nano_12_p16_224": {
        "img_size": SIDE,
        "patch_size": 8,
        "embed_dim": 32,
        "depth": 1,
        "num_heads": 4,
        "cls_attn_layers": 1,
    },
    "pvt_v2_b0": {
        "depths": (1, 1),
        "embed_dims": (8, 16),
        "num_heads": (1, 2),
        "sr_ratios": (4, 2),
        "mlp_ratios": (2, 2),
    },
}


def make_timm(name):
    timm = library_or_skip("timm")
    return timm.create_model(name, num_classes=CLASSES, **TIMM[name]), (torch.randn(IMAGES, 3, SIDE, SIDE),), {}


def make_mobilenet():
    """A block of each kind: to compile all eleven takes three times as long."""
    parts = library_or_skip("timm").models.mobilenetv3
    blocks = ["ds_r1_k3_s2_e1_c8_se0.25_nre"], ["ir_r1_k3_s2_e4.5_c16_nre"], ["ir_r2_k5_s2_e4_c24_se0.25"]
    model = parts.MobileNetV3(
        parts.decode_arch_def([*blocks, ["cn_r1_k1_s1_c64"]]),
        num_classes=CLASSES,
        num_features=64,
        stem_size=8,
        act_layer=nn.Hardswish,
        se_layer=partial(parts.SqueezeExcite, gate_layer="hard_sigmoid", force_act_layer=nn.ReLU),
    )
    return model, (torch.randn(IMAGES, 3, SIDE, SIDE),), {}


def make_resnext():
    parts = library_or_skip("timm").models.byobnet
    blocks = tuple(parts.ByoBlockCfg(type="bottle", d=1, c=width, s=2, gs=8, br=0.5) for width in (16, 32))
    config = parts.ByoModelCfg(blocks, stem_chs=16, stem_type="tiered", stem_pool="maxpool", act_layer="silu")
    return parts.ByobNet(config, num_classes=CLASSES), (torch.randn(IMAGES, 3, SIDE, SIDE),), {}


UNET = {"sample_size": 16, "block_out_channels": (8, 8), "layers_per_block": 1, "norm_num_groups": 4}
DIT = {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "num_layers": 1, "sample_size": 16}


def noisy(channels=4):
    return torch.randn(IMAGES, channels, 16, 16)


def times():
    return torch.arange(IMAGES) * 7 + 3


# By name: the model, its fields, and its inputs.
DIFFUSERS = {
    "unet": (
        "UNet2DModel",
        {
            **UNET,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": 4,
        },
        lambda: {"sample": noisy(3), "timestep": times()},
    ),
    "autoencoder": (
        "AutoencoderKL",
        {"block_out_channels": (8,), "norm_num_groups": 4},
        lambda: {"sample": noisy(3)},
    ),
    "dit": (
        "DiTTransformer2DModel",
        {**DIT, "norm_num_groups": 4, "num_embeds_ada_norm": 64},
        lambda: {"hidden_states": noisy(), "timestep": times(), "class_labels": torch.arange(IMAGES)},
    ),
    "sd3": (
        "SD3Transformer2DModel",
        {
            **DIT,
            "patch_size": 2,
            "joint_attention_dim": 8,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 8,
            "out_channels": 4,
        },
        lambda: {
            "hidden_states": noisy(),
            "encoder_hidden_states": torch.randn(IMAGES, 5, 8),
            "pooled_projections": torch.randn(IMAGES, 8),
            "timestep": times(),
        },
    ),
}


def make_diffusers(name):
    diffusers = library_or_skip("diffusers")
    model, fields, inputs = DIFFUSERS[name]
    return getattr(diffusers, model)(**fields), (), inputs()


class GraphNet(nn.Module):
    """Layers with a nonlinearity after each."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x, edges):
        for layer in self.layers:
            x = torch.tanh(layer(x, edges))
        return x


def make_pyg(name):
    layers = library_or_skip("torch_geometric.nn")
    layer = getattr(layers, name)
    heads = 2 if name in ("GATConv", "TransformerConv") else None
    width, options = (FEATURES, {}) if heads is None else (FEATURES // heads, {"heads": heads})
    net = GraphNet(layer(FEATURES, width, **options) for _ in range(3))
    edges = torch.stack([torch.randint(NODES, (EDGES,)), torch.arange(EDGES) % NODES])
    return net, (torch.randn(NODES, FEATURES), edges), {}


NETS = {
    **{f"timm: {name}": partial(make_timm, name) for name in TIMM},
    "timm: mobilenetv3_small_050": make_mobilenet,
    "timm: resnext26ts": make_resnext,
    **{f"transformers: {name}": partial(make_transformers, name) for name in TRANSFORMERS},
    **{f"diffusers: {name}": partial(make_diffusers, name) for name in DIFFUSERS},
    **{f"pyg: {name}": partial(make_pyg, name) for name in ("GCNConv", "SAGEConv", "GATConv", "TransformerConv")},
}


def build(name):
    """A net in training mode, always with the same weights, and the arguments of its forward.

    Dropout is off, since inductor draws other numbers. Batch norms use running statistics, so that a few elements'
    statistics amplify no error.
    """
    torch.manual_seed(0)
    model, args, kwargs = NETS[name]()
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for field, value in vars(module).items():
            if field in ("drop_prob", "dropout", "dropout_p", "dropout_prob", "attention_dropout") and isinstance(
                value, float
            ):
                setattr(module, field, 0.0)
    return model, args, kwargs
