"""``python -m onestream`` is the same as ``onestream``."""

from onestream.cli.main import main

main()
