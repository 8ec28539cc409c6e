"""Output of the command line: console, progress, tables, reports and plots."""
