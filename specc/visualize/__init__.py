"""Visualization of model architectures: block trees, data flow diagrams, costs and differences."""
