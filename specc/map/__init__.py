"""A model over a data set: rows of files in, rows of files out.

Takes a compiled model and tables (Parquet, JSON lines, CSV, lines of text, folders of
pictures); gives part files, one for each block of rows. `plan` says what is to be done,
`block` does one block of it and hangs on nothing else, so that whoever hands out the
numbers of blocks (`engines`) can neither lose nor double a row.
"""
