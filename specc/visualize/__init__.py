"""Visualization of architectures: trees and drawings of blocks with data flow, cost plots, and
differences.
"""
