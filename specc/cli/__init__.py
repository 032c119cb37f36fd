"""The command line. A module contains a command or several related ones: a function
`add_…_arguments` declares the options and `run_…` runs the command. `main` dispatches
commands and prints diagnostics. No other package prints to the terminal.
"""
