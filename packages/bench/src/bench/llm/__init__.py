"""``python -m bench llm``: the loss of a language model, alone and in models, in every way.

subjects.py   what is measured: hidden states with a vocabulary, and models
cell.py       one subject in one way, in a process of its own
command.py    its options, and what makes it a bench
measure.py    all of them, their steps timed in turn
results.py    what is recorded
report.py     the tables
"""
