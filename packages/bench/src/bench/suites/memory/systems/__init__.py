"""``python -m bench systems``: memory against time, every way to train beside every other, model by model.

subjects.py        the models, one of each kind that people train
peak_subjects.py   more of them, whose peaks are measured beside what plans say
gpu_subjects.py    those that a GPU is measured with, and the ways that they are trained in
planning.py        how long planning takes, and how good plans are
cell.py            one model in one way, in another process
device.py          what a step takes of a GPU and of the processor beside it
measure.py         a run: cell by cell; a crash is recorded, and the rest goes on
results.py         what is recorded
fronts.py          who wins where, and within each budget plans beside the fastest of all others
report.py          the tables and the notes below them
chart.py           the chart
"""
