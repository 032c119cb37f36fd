"""Rewrites that keep the meaning: equal values at less work.

In comes a valid graph, out goes a valid graph with the same inputs and results.
"""
