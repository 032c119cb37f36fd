"""Incremental decoding: derive the encoder graph and the decode step from the full-forward graph.

The input is a graph that has been proved causal along its time axis. The output is the encoder
graph, the decode step, and the states that each step passes to the next.
"""
