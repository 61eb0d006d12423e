"""``torch.autograd.Function``s that save through a codec and ask torch for everything else."""
