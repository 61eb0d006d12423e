"""``python -m bench text``: BERT on GLUE's tasks, trained in every way: accuracy, memory and time."""
