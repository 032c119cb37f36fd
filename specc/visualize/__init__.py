"""Visualization of model architectures: block trees, dataflow diagrams, costs and differences."""
