"""``python -m bench llm``: the loss of a language model, alone and in models, in every way, and training on sentences.

subjects.py   what is measured: hidden states with a vocabulary, and models
models.py     the decoders
ways.py       the ways to train a model
cell.py       one subject in one way, in a process of its own
words.py      sentences as one text
training.py   a small Llama that learns it
command.py    its options, and what makes it a bench
measure.py    all of them, their steps timed in turn
results.py    what is recorded
report.py     the tables
chart.py      the chart
"""
