"""``onestream``: one command with a subcommand for each thing a user does."""

from __future__ import annotations

import typer

from onestream.cli.augment import augment
from onestream.cli.bench import bench
from onestream.cli.build import build
from onestream.cli.bulk.command import bulk
from onestream.cli.demo import demo
from onestream.cli.demo_page.command import demo_page
from onestream.cli.doctor import doctor
from onestream.cli.import_command import import_preprocessing
from onestream.cli.parity import parity
from onestream.cli.predict import predict
from onestream.cli.proxy import proxy, token
from onestream.cli.rollout import rollout
from onestream.cli.serve import serve
from onestream.cli.stream import stream
from onestream.cli.top.command import top
from onestream.cli.tune import tune

app = typer.Typer(no_args_is_help=True, add_completion=False)
COMMANDS = (
    build,
    serve,
    rollout,
    proxy,
    token,
    predict,
    bulk,
    stream,
    top,
    demo,
    demo_page,
    doctor,
    parity,
    tune,
    augment,
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
