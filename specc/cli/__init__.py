"""The command line. Each module implements one command or several related commands:
`add_…_arguments` declares the options and `execute_…` runs the command. `main` dispatches commands
and prints diagnostics. No other package prints to the terminal.
"""
