"""Incremental decoding: derive the encoder and the decode step from a full graph.

In comes a graph that was proved causal along its time axis, out go the derived
graphs and what a step hands to the next one.
"""
