"""The tables of the four systems' READMEs, row by row: what they published beside what was measured here.

made.py         a table, and the results that it was made of
claims.py       what GACT and ActNN claim in words
gact.py, actnn.py, fewbit.py, checkpointing.py
                the rows of each: the published figures, and where ours are
tables.py       all of them by name
"""
