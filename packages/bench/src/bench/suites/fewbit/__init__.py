"""``python -m bench fewbit``: few-bit activations and randomized linear layers, in parts that can be run alone.

measure.py      a run: which parts, in which order
memory.py       parts "memory" and "grid": the activation peak of each way, in a process of its own
training.py     part "training": that BERT with 3-bit GELU beside the exact one, seeds in pairs
step_time.py    part "time": activations and linear layers beside torch's own, in turn
step_errors.py  a command of its own: the errors of few-bit derivatives
results.py      what is recorded
report.py       the tables and the notes below them
chart.py        the chart
"""
