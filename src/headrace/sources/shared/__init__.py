"""What formats share: writing to a target, layouts, text and JSON fields, files read at any position.

It knows no format of a corpus. Read `writer.py` and `plain_files.py` first.
"""
