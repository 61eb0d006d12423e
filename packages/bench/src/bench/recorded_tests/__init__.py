"""Tests of ``integrations`` that record what they measure: ``pytest --record FILE``.

write.py      the file: subjects that it has are not measured again
operators.py  torch's database of operators: entries and tables
sweep.py      a compressed step of many models: entries and tables
"""
