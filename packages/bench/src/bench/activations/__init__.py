"""``python -m bench activations``: bytes, gradients and time of models of any kind under compression.

measure.py   levels on one model: what is stored, the gradient's error, a step's time
overhead.py  what a saved tensor costs where the tensors are tiny
results.py   what comes out, as JSON
report.py    the tables
"""
