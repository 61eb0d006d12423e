"""``python -m bench checkpoint``: training with planned recomputation beside plain training, model by model.

sizes.py            at which sizes a model is measured
step.py             one step
measure.py          a run: which parts, in which order
planning.py         part "plan": what is planned, at any size
memory.py           part "memory": activation peaks, in a process of their own
step_time.py        part "time": steps in turn, and how far their gradients differ; part "compile": the same, compiled
results.py          what is recorded
targets.py          what is asked for, and what was found
report.py           the tables and the notes below them
chart.py            the chart
"""
