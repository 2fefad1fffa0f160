"""Files of tokens, as language models are trained on, cut into documents or blocks.

It knows no vocabulary: tokens are numbers. Read `source.py` first, then `cuts.py`.
"""
