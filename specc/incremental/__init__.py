"""Incremental decoding: derive the encoder and the decode step from a full graph.

Input: a graph that has been proved causal along its time axis. Output: the derived graphs and the
states that each step passes to the next step.
"""
