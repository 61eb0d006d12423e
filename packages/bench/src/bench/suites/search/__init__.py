"""``python -m bench search``: the largest batch, depth, width, length or resolution that trains within a given memory.

dimensions.py      what is searched, by the name that the command line knows, at a device's sizes
bisection.py       the search: growth, then bisection
trial.py           some training steps within a limit, in this process
processes.py       the processes that trials are made in
measure.py         a run: search by search, each trial written as it is made
results.py         what is recorded
published.py       what the papers' authors have found
report.py          the tables and the notes below them
chart.py           the chart
"""
