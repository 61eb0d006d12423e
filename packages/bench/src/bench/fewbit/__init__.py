"""``python -m bench fewbit``: few-bit activations and randomized linear layers, in parts that can be run alone.

command.py      the command line
measure.py      a run: which parts, in which order
roberta.py      the network whose memory is measured, and FewBit's four ways to train it
memory.py       part "memory": the activation peak of each way, in a process of its own
grid.py         part "grid": the same for every number of bits and every ratio
published.py    what FewBit's README has
bert.py         a small BERT that fills in masked words
training.py     part "training": that BERT with 3-bit GELU beside the exact one, seeds in pairs
step_time.py    part "time": activations and linear layers beside torch's own, in turn
results.py      what comes out, as JSON
report.py       the tables, notes.py what stands below them
chart.py        the chart
"""
