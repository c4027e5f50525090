"""``onestream``: one command with a subcommand for each thing a user does."""

from __future__ import annotations

import typer

from onestream.bench.command import bench
from onestream.build import build
from onestream.bulk.command import bulk
from onestream.classify import classify
from onestream.demo import demo
from onestream.demo_page.command import demo_page
from onestream.doctor import doctor
from onestream.importing import import_preprocessing
from onestream.parity.command import parity
from onestream.proxy import proxy, token
from onestream.rollout import rollout
from onestream.serve import serve
from onestream.stream import stream
from onestream.top.command import top
from onestream.trace import trace
from onestream.tune.command import tune

app = typer.Typer(no_args_is_help=True, add_completion=False)
COMMANDS = (
    build,
    serve,
    rollout,
    proxy,
    token,
    classify,
    bulk,
    stream,
    top,
    trace,
    demo,
    demo_page,
    doctor,
    parity,
    tune,
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(bench, name="bench")
app.command("import")(import_preprocessing)


@app.callback()
def _root() -> None:
    """Serve vision models on NVIDIA Triton with one preprocessing definition for training and serving."""


def main() -> None:
    """Entry point of the console script."""
    app()
