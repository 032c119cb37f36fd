"""Derived graphs under the names that other programs read.

In come derived graphs, out go graphs that mean the same with the inputs, outputs and
roles of Optimum, transformers.js or onnxruntime-genai, or a diagnostic that says why
that cannot be.
"""
