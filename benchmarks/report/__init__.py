"""What result files say, as tables and plots."""
