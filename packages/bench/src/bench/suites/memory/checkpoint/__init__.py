"""``python -m bench checkpoint``: training with planned recomputation beside plain training, model by model."""
