"""``python -m bench sweep``: one compressed training step of many models and layers, each beside its plain one.

timm_models.py, transformers_models.py, pyg_layers.py    what is swept, by ecosystem
subjects.py    all of it
command.py     its options, and what makes it a bench
measure.py     one of them: compress_model, a step, restore_model
run.py         a run, one subject after the other
results.py     what is recorded, and what passes
report.py      the tables, notes.py what stands below them
page.py        the same as a page of the documentation
"""
