"""What the machine has and what a process takes of it."""
