"""`headrace convert`: from any source to any writer, one file or resumable shards.

Decides file names, what is refused, what is verified; knows no format. Read `command.py` first, then `conversion.py`
and `shards.py`.
"""
