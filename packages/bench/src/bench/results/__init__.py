"""Recorded results: what a benchmark measured, the files that hold it, and the tables and charts made of it.

entry.py       an entry: a subject, a way, and what was measured; a benchmark declares each kind of entry as a class
record.py      a record: all entries of a run, the machine and the settings; ``Kind`` declares what it may hold
machine.py     the machine, the versions and the command that made a record
statistics.py  paired differences and their intervals
tables.py      tables of rows and columns, and how numbers are written in them
charts.py      panels of bars, or of points and lines
report.py      tables, notes and chart of one kind of record
published.py   numbers that others published: data files with their sources
"""
