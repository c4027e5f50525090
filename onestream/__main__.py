"""``python -m onestream`` is the same as ``onestream``."""

from onestream.cli import main

main()
