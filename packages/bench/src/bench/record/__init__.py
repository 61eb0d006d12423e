"""The one record that all benches write: subject by way by metric.

entry.py      an entry, and how a bench declares what it is of and what is measured
kind.py       a bench's kind of record: which entries it has, and which settings
files.py      records as JSON; declared.py has what is in them, for the documentation
run.py        the one loop: what is left, one after another, each written as it is found, and taken up
child.py      one entry in a process of its own
options.py    options of commands, those that benches share declared once
tables.py     rows and columns as tables, and how numbers are written in them
charts.py     what charts have in common
bench.py      what makes all of these a command
"""
