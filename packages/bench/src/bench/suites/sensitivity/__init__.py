"""``python -m bench sensitivity``: how well adaptive levels know which tensors matter, and what that buys.

measure.py   the estimator beside GACT's two-seed estimate; the gradient's error with and without a plan
results.py   what is recorded
report.py    the tables and the notes below them
"""
