"""Visualization of architectures: block trees, drawings with data flow, costs, differences."""
