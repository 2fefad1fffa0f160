"""Values into a slot and back: arrays are copied once, or not at all.

It decides how a value is laid out in bytes. It knows nothing of workers, nor of where a slot gets its memory. Read
`codec.py` first, then `format.py`.
"""
