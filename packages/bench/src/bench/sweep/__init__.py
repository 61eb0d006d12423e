"""``python -m bench sweep``: one compressed training step of many models and layers, each beside its plain one.

timm_models.py, transformers_models.py, pyg_layers.py    what is swept, by ecosystem
subjects.py    all of it
command.py     the command: its arguments, and what it does with them
measure.py     one of them: compress_model, a step, restore_model
run.py         a run, one subject after the other
record.py      the file, written after each subject and taken up by the next run
results.py     what comes out, as JSON, and what passes
report.py      the tables, notes.py what stands below them
page.py        the same as a page of the documentation
"""
