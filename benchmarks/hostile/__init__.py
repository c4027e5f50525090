"""What hostile callers, killed processes and long nights do to a server, measured."""
