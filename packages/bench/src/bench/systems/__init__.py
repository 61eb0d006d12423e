"""``python -m bench systems``: memory against time, every way to train beside every other, model by model.

subject.py         a model with a batch for it
subjects.py        the models, one of each kind that people train
peak_subjects.py   more of them, whose peaks are measured beside what plans say
gpu_subjects.py    those that a GPU is measured with, and the ways that they are trained in
ways.py            the ways: plain, ours alone and together, and those of torch and others
planning.py        how long planning takes, and how good plans are; planning_report.py has the tables
cell.py            one model in one way, in another process
device.py          what a step takes of a GPU and of the processor beside it
command.py         its options, and what makes it a bench
measure.py         a run: cell by cell; a crash is recorded, and the rest goes on
results.py         what is recorded
front.py           who wins where
report.py          the tables; figures_report.py has those of device.py
budgets.py         within each budget, plans beside the fastest of all others; budgets_report.py has the tables
chart.py           the chart
"""
