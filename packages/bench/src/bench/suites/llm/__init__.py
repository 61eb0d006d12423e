"""``python -m bench llm``: the loss of a language model, alone and in models, in every way, and training on sentences.

subjects.py   what is measured: hidden states with a vocabulary, and models
cell.py       one subject in one way, in a process of its own
training.py   a small Llama that learns it
measure.py    all of them, their steps timed in turn
results.py    what is recorded
report.py     the tables and the notes below them
chart.py      the chart
"""
