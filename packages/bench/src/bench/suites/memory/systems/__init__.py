"""``python -m bench systems``: memory against time, every way to train beside every other, model by model."""
