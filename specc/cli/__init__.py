"""The command line. Each module of this package implements one command or several related commands.
`add_…_arguments` declares the options of a command, and `execute_…_command` runs it. `main`
dispatches commands and prints diagnostics. No other package prints to the terminal.
"""
