"""``python -m bench text``: BERT on GLUE's tasks, trained in every way: accuracy, memory and time.

tasks.py        GLUE's tasks: their columns, metrics and the settings that they are trained with
metrics.py      their metrics
texts.py        the sentences of a task: from a folder, from the hub, or generated
generated.py    the task that is made of a grammar, where none is at hand or none can be learned
encoding.py     sentences as numbers, by words or by a model's own tokenizer
models.py       the networks, tiny to large
ways.py         the ways to train, by names such as "gelu 3 bits"
training.py     part "accuracy": one run of a task, a way and a seed
cell.py         parts "memory" and "time": a step in one way, in a process of its own
command.py      its options, and what makes it a bench
measure.py      a run: cell by cell; a crash is recorded, and the rest goes on
results.py      what is recorded
published.py    the figures of GACT and FewBit
report.py       the tables, beside.py those with published figures, notes.py what stands below them
chart.py        the chart
"""
