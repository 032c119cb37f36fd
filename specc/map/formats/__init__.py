"""Files of rows: where blocks of them begin, and what stands in them.

Each format gives the names and kinds of its columns, cuts a file into blocks, and reads
one block as columns of Python values.
"""
