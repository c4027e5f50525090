"""The command that installs what is missing: every error that names one takes it from here."""

from __future__ import annotations


def install_command(*extras: str, group: str | None = None) -> str:
    """The command for these extras and this dependency group of pyproject.toml.

    It names the checkout: no package index has onestream, and wheels hold no groups. ``-e`` keeps the editable
    install of ``make install``.

    >>> install_command("cpu", "train")
    "pip install -e '.[cpu,train]' in onestream's checkout"
    >>> install_command(group="bench")
    "pip install --group bench in onestream's checkout (pip 25.1 or newer)"
    """
    of_extras = [f"-e '.[{','.join(extras)}]'"] if extras else []
    of_group = [f"--group {group}"] if group else []
    command = f"pip install {' '.join([*of_extras, *of_group])} in onestream's checkout"
    return f"{command} (pip 25.1 or newer)" if group else command
