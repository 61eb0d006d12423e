"""``python -m bench systems``: memory against time, every way to train beside every other, model by model.

subjects.py     the models, one of each kind that people train
ways.py         the ways: plain, ours alone and together, and those of torch and others
cell.py         one model in one way, in a process of its own
measure.py      a run: cell by cell; a crash is recorded, and the rest goes on
results.py      what comes out, as JSON
report.py       the tables, and who wins where
chart.py        the chart
"""
