"""The command line: one module a command, with `arguments` and `run`; `main` finds them
and prints diagnostics.

Input: arguments. Output: text on the terminal and an exit code. Nothing else in specc
prints.
"""
