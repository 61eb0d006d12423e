"""Small models of four libraries, each with inputs for a training step: ``MODELS``, by library and name."""

from functools import partial

import pytest
import torch

TEXT = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**TEXT, "num_key_value_heads": 2}
PAIR = {
    "vocab_size": 128,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
T5 = {
    "vocab_size": 128,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
EXPERTS = {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
PICTURE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def tokens(batch=2, length=16):
    return torch.randint(5, 128, (batch, length))


def language():
    ids = tokens()
    return {"input_ids": ids, "labels": ids.clone()}


def routed():
    return {**language(), "output_router_logits": True}


def padded():
    mask = (torch.arange(16) < torch.tensor([[10], [16]])).long()
    return {"input_ids": tokens(), "attention_mask": mask, "labels": torch.tensor([0, 1])}


def classified():
    return {"input_ids": tokens(), "labels": torch.tensor([0, 1])}


def pictures(side=32):
    return {"pixel_values": torch.randn(2, 3, side, side), "labels": torch.tensor([0, 1])}


def masked_pictures():
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def segmented():
    return {"pixel_values": torch.randn(2, 3, 64, 64), "labels": torch.randint(2, (2, 64, 64))}


def spectrum():
    return {"input_features": torch.randn(2, 80, 64), "labels": tokens(2, 8)}


def hidden_states():
    return {**language(), "output_hidden_states": True}


def translation():
    return {"input_ids": tokens(), "labels": tokens()}


# By name: the configuration, the model, its fields, and the inputs of a step.
TRANSFORMERS = {
    "bert, padded": ("BertConfig", "BertForSequenceClassification", TEXT, padded),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", TEXT, language),
    "albert": ("AlbertConfig", "AlbertForSequenceClassification", {**TEXT, "embedding_size": 16}, classified),
    "deberta v2": ("DebertaV2Config", "DebertaV2ForSequenceClassification", TEXT, classified),
    "mpnet": ("MPNetConfig", "MPNetForMaskedLM", TEXT, language),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2},
        language,
    ),
    "llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED, language),
    "llama, hidden states": ("LlamaConfig", "LlamaForCausalLM", GROUPED, hidden_states),
    "gemma 2": ("Gemma2Config", "Gemma2ForCausalLM", {**GROUPED, "head_dim": 8}, language),
    "qwen 3": ("Qwen3Config", "Qwen3ForCausalLM", {**GROUPED, "head_dim": 8}, language),
    "mixtral, router's logits": ("MixtralConfig", "MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}, routed),
    "qwen 3 of experts, router's logits": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {**EXPERTS, "head_dim": 8},
        routed,
    ),
    "deepseek v3": (
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {
            **EXPERTS,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
        language,
    ),
    "bloom": ("BloomConfig", "BloomForCausalLM", {**TEXT, "n_layer": 2, "n_head": 4}, language),
    "t5": ("T5Config", "T5ForConditionalGeneration", T5, translation),
    "bart": ("BartConfig", "BartForConditionalGeneration", {**PAIR, "forced_eos_token_id": 2}, translation),
    "whisper": (
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {**PAIR, "max_source_positions": 32},
        spectrum,
    ),
    "vit": ("ViTConfig", "ViTForImageClassification", {**PICTURE, "image_size": 32, "patch_size": 8}, pictures),
    "vit mae": (
        "ViTMAEConfig",
        "ViTMAEForPreTraining",
        {
            **PICTURE,
            "image_size": 32,
            "patch_size": 8,
            "decoder_num_attention_heads": 2,
            "decoder_hidden_size": 32,
            "decoder_num_hidden_layers": 1,
            "decoder_intermediate_size": 64,
        },
        masked_pictures,
    ),
    "segformer": (
        "SegformerConfig",
        "SegformerForSemanticSegmentation",
        {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32], "decoder_hidden_size": 16, "num_labels": 2},
        segmented,
    ),
}

# By name: the least side that it takes, in pixels, and fields.
TIMM = {
    "resnet18": (32, {}),
    "resnext26ts": (32, {}),
    "mobilenetv3_small_050": (32, {}),
    "efficientnet_b0": (32, {}),
    "repvgg_a0": (32, {}),
    "convnext_atto": (32, {}),
    "vit_tiny_patch16_224": (32, {"img_size": 32, "depth": 2}),
    "swin_tiny_patch4_window7_224": (32, {"img_size": 32, "depths": (1, 1, 1, 1)}),
    "swinv2_tiny_window8_256": (32, {"img_size": 64, "depths": (1, 1, 1, 1)}),
    "coat_tiny": (32, {"img_size": 32, "serial_depths": (1, 1, 1, 1), "parallel_depth": 1}),
    "levit_128s": (224, {"depth": (1, 1, 1)}),
    "xcit_nano_12_p16_224": (32, {"img_size": 32, "depth": 2}),
    "maxvit_rmlp_pico_rw_256": (64, {"img_size": 64, "depths": (1, 1, 1, 1)}),
    "mixer_s32_224": (64, {"img_size": 64}),
    "pvt_v2_b0": (32, {}),
}

UNET = {"sample_size": 8, "block_out_channels": (8, 8), "layers_per_block": 1, "norm_num_groups": 4}
CONDITIONED = {
    **UNET,
    "cross_attention_dim": 8,
    "attention_head_dim": 4,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}
DIT = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "num_layers": 2, "sample_size": 8}
STEPS = torch.tensor([3, 5])


def noisy(channels=4):
    return torch.randn(2, channels, 8, 8)


def prompt(width=8):
    return torch.randn(2, 5, width)


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
        lambda: {"sample": noisy(3), "timestep": STEPS},
    ),
    "unet with a prompt": (
        "UNet2DConditionModel",
        CONDITIONED,
        lambda: {"sample": noisy(), "timestep": STEPS, "encoder_hidden_states": prompt()},
    ),
    "unet at one step": (
        "UNet2DConditionModel",
        CONDITIONED,
        lambda: {"sample": noisy(), "timestep": 7, "encoder_hidden_states": prompt()},
    ),
    "autoencoder": (
        "AutoencoderKL",
        {"block_out_channels": (8,), "norm_num_groups": 4},
        lambda: {"sample": noisy(3)},
    ),
    "codebook": ("VQModel", {"block_out_channels": (8,), "norm_num_groups": 4}, lambda: {"sample": noisy(3)}),
    "dit": (
        "DiTTransformer2DModel",
        {**DIT, "norm_num_groups": 4},
        lambda: {"hidden_states": noisy(), "timestep": STEPS, "class_labels": torch.tensor([1, 2])},
    ),
    "sd3": (
        "SD3Transformer2DModel",
        {
            **DIT,
            "patch_size": 2,
            "joint_attention_dim": 8,
            "caption_projection_dim": 16,
            "pooled_projection_dim": 8,
            "out_channels": 4,
        },
        lambda: {
            "hidden_states": noisy(),
            "encoder_hidden_states": prompt(),
            "pooled_projections": torch.randn(2, 8),
            "timestep": STEPS,
        },
    ),
    "pixart": (
        "PixArtTransformer2DModel",
        {**DIT, "cross_attention_dim": 16, "caption_channels": 8, "norm_num_groups": 4},
        lambda: {
            "hidden_states": noisy(),
            "encoder_hidden_states": prompt(),
            "timestep": STEPS,
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        },
    ),
}

NODES, WIDTH = 30, 16

# By layer: what it is made with, and whether it takes the edges' features or kinds.
PYG = {
    "GCNConv": ((WIDTH, WIDTH), {}, ""),
    "ChebConv": ((WIDTH, WIDTH), {"K": 2}, ""),
    "SAGEConv": ((WIDTH, WIDTH), {}, ""),
    "GraphConv": ((WIDTH, WIDTH), {}, ""),
    "GATConv": ((WIDTH, 4), {"heads": 2}, ""),
    "GATv2Conv": ((WIDTH, 4), {"heads": 2}, ""),
    "TransformerConv": ((WIDTH, 4), {"heads": 2}, ""),
    "GINEConv": ((None,), {"edge_dim": 3}, "features"),
    "GENConv": ((WIDTH, WIDTH), {"edge_dim": 3}, "features"),
    "CGConv": ((WIDTH,), {"dim": 3}, "features"),
    "RGCNConv": ((WIDTH, WIDTH, 3), {}, "kinds"),
    "TAGConv": ((WIDTH, WIDTH), {}, ""),
    "SGConv": ((WIDTH, WIDTH), {"K": 2}, ""),
    "ARMAConv": ((WIDTH, WIDTH), {}, ""),
    "EdgeConv": ((None,), {}, ""),
    "ResGatedGraphConv": ((WIDTH, WIDTH), {}, ""),
    "FiLMConv": ((WIDTH, WIDTH), {}, ""),
}


def _transformers(name):
    transformers = pytest.importorskip("transformers")
    config, model, fields, inputs = TRANSFORMERS[name]
    made = getattr(transformers, model)(getattr(transformers, config)(**fields))
    if name == "bart":
        made.resize_token_embeddings(130)
    return made, (), inputs()


def _timm(name):
    timm = pytest.importorskip("timm")
    side, fields = TIMM[name]
    side = fields.get("img_size", side)
    return timm.create_model(name, num_classes=4, **fields), (torch.randn(2, 3, side, side),), {}


def _diffusers(name):
    diffusers = pytest.importorskip("diffusers")
    model, fields, inputs = DIFFUSERS[name]
    return getattr(diffusers, model)(**fields), (), inputs()


def _pyg(name):
    geometric = pytest.importorskip("torch_geometric.nn")
    given, options, edges = PYG[name]
    if given == (None,):
        given = (torch.nn.Linear(2 * WIDTH if name == "EdgeConv" else WIDTH, WIDTH),)
    index = torch.stack([torch.randint(NODES, (90,)), torch.arange(90) % NODES])
    more = {"features": (torch.randn(90, 3),), "kinds": (torch.randint(3, (90,)),), "": ()}[edges]
    return getattr(geometric, name)(*given, **options), (torch.randn(NODES, WIDTH), index, *more), {}


MAKERS = (("transformers", TRANSFORMERS, _transformers), ("timm", TIMM, _timm))
MAKERS += (("diffusers", DIFFUSERS, _diffusers), ("pyg", PYG, _pyg))
MODELS = {f"{library}: {name}": partial(make, name) for library, names, make in MAKERS for name in names}
