"""Tree and config values to graph: names looked up, blocks called, loops unrolled,
shapes checked.
"""
