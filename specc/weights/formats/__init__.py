"""File formats that hold tensors: safetensors, and GloVe's text.

In come open files, out go names, types, shapes and offsets that were checked against
the file's size.
"""
