"""Graph transforms: rewrites, quantization and mixed precision.

In comes a valid graph, out goes a valid graph with the same inputs and results.

In comes a graph as every target gets it, out go a plan by the names of weights and
graphs with `linear_q` and `embedding_q`.

In comes a graph as every target gets it, out goes one with casts, or a graph taken
apart, whose states are then as narrow as what made them.
"""
