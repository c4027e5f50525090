"""The command that installs what is missing: every error that names one takes it from here."""

from __future__ import annotations


def install_command(*extras: str) -> str:
    """The command for these extras of pyproject.toml. It names the checkout, since no package index has onestream.

    >>> install_command("cpu", "train")
    "pip install '.[cpu,train]' in onestream's checkout"
    """
    return f"pip install '.[{','.join(extras)}]' in onestream's checkout"
