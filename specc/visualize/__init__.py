"""Visualization of architectures as trees and drawings: blocks with data flow, cost, and
differences.
"""
