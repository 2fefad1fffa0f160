"""Files that appear whole or not at all: one, a folder of them, or several that get their names together.

It decides when a new file is valid, and knows nothing of its content. Read `pending.py` first.
"""
