"""The commands: one file for each, which reads options and prints; the work is done elsewhere."""
