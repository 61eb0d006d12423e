"""``python -m bench operators``: torch's own database of operators under compression.

subjects.py    the database's operators and samples, and a model that calls one
step.py        a forward and a backward, and whether two are the same bit for bit
stored.py      what is restored of each saved tensor, and the gradient on the way there
bounds.py      how far a rounded gradient may be off, by the rules
measure.py     one operator: plain, at L0, at a level, under an exact plan
results.py     what is recorded
run.py         a run, one operator after the other
command.py     its options, and what makes it a bench
report.py      the tables, lines.py what they have of each operator
"""
