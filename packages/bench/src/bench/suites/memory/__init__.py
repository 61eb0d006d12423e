"""What training takes of memory and time.

activations  bytes, the gradient's error and step time of models under compression
checkpoint   planned recomputation: planned and measured peaks, time, gradients
systems      every way to train beside every other
"""
