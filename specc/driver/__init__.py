"""Compiler driver: opens a spec, binds the weights, runs the passes, lowers the graphs and writes
the files.
"""
