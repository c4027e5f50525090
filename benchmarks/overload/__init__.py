"""What a server does with more than it can: ``python -m benchmarks.overload``; its method is in ../README.md."""
