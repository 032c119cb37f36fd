"""Weights rounded to few bits: which can be, in what form, and the graph that reads them.

In comes a graph as every target gets it, out go a plan by the names of weights and
graphs with `linear_q` and `embedding_q`.
"""
