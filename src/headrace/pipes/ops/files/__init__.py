"""Files as items: listed, opened, taken apart, checked, written.

Knows nothing of sequences or data keys. Read `local.py` first, then `parts.py`: pipes that make many items of one open
file.
"""
