"""Finds files of extracted states that are wrong, without the model that they came from.

Each file is read once (`sample`) and leaves a small record (`record`); what only shows between files is found in the records
(`comparison`). `folder` goes through the files, `norms` and `picture` show how large the states are.
"""
