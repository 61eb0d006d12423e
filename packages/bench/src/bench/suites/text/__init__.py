"""``python -m bench text``: BERT on GLUE's tasks, trained in every way: accuracy, memory and time.

metrics.py      their metrics
training.py     part "accuracy": one run of a task, a way and a seed
cell.py         parts "memory" and "time": a step in one way, in a process of its own
measure.py      a run: cell by cell; a crash is recorded, and the rest goes on
results.py      what is recorded
published.py    the figures of GACT and FewBit
report.py       the tables and the notes below them
chart.py        the chart
"""
