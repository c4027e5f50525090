"""A server on this machine: started, watched, rolled out, diagnosed and stopped."""
