"""What the command line writes: console, progress, tables, reports and plots."""
