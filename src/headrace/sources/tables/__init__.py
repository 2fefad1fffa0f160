"""Tables as corpora: rows of Parquet, Arrow and Hugging Face's library are sequences, columns are data keys.

Pyarrow is imported when a table is opened. Read `source.py` first, then `schema.py` and `fields.py`.
"""
