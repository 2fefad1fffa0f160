"""Images: decoded by Pillow, wherever they are stored, and folders of them.

Read `codec.py` for what becomes of an image.
"""
