"""Files of tokens for training language models, cut into documents or blocks.

It knows no vocabulary: tokens are numbers. Read `source.py` first, then `files.py`.
"""
