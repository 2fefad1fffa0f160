"""Files that appear whole or not at all: one, a folder of them, or several that get their names together.

It decides when a new file counts. It knows nothing of what is in it. Read `pending.py` first.
"""
