"""What weights are rounded by, beside themselves: inputs that the model is run on, its own
texts or those of a file, and what each weight reads of them.
"""
