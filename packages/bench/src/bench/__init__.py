"""bench: what compressed activations save and cost, measured.

python -m bench gnn          train GNNs at full precision and compressed; accuracy, memory, time
python -m bench kernels      time the 4-bit kernels against a copy
python -m bench show FILE    print, and draw, results that were recorded before
"""
