"""What a graph costs and how it is laid out, as formulas over its lengths.

In comes a graph, out go numbers and outlines for people; no graph is changed here.
"""
