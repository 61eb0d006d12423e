"""``python -m bench fewbit``: few-bit activations and randomized linear layers, in parts that can be run alone.

command.py      its options, and what makes it a bench
measure.py      a run: which parts, in which order
roberta.py      the network whose memory is measured, and FewBit's four ways to train it
memory.py       parts "memory" and "grid": the activation peak of each way, in a process of its own
published.py    what FewBit's README has
bert.py         a small BERT that fills in masked words
training.py     part "training": that BERT with 3-bit GELU beside the exact one, seeds in pairs
step_time.py    part "time": activations and linear layers beside torch's own, in turn
step_errors.py  a command of its own: the errors of few-bit derivatives
results.py      what is recorded
report.py       the tables, notes.py what stands below them
chart.py        the chart
"""
