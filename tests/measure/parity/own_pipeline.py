"""A pipeline of the user's own, as files, and the command that compares it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner, Result

from onestream.cli.main import app
from onestream.measure.parity.report import CascadeReport, Report, SubjectReport
from onestream.measure.parity.run import Options, run
from onestream.preprocess import Definition

OPERATIONS: list[dict[str, object]] = [
    {"op": "decode"},
    {"op": "resize", "mode": "shorter", "size": 40},
    {"op": "center_crop", "size": [32, 32]},
    {"op": "normalize", "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
]


@dataclass(frozen=True)
class Own:
    """A pipeline file and its repository."""

    file: Path
    repository: Path

    @property
    def definition(self) -> Definition:
        return Definition.model_validate(yaml.safe_load(self.file.read_text())["preprocess"])

    def rewrite(self, **fields: object) -> None:
        """Change fields of the pipeline file, and build nothing."""
        self.file.write_text(yaml.safe_dump(yaml.safe_load(self.file.read_text()) | fields))

    def change(self, index: int, **fields: object) -> None:
        """Change an operation of the pipeline file, and build nothing."""
        operations = yaml.safe_load(self.file.read_text())["preprocess"]["operations"]
        operations[index] = fields if "op" in fields else operations[index] | fields
        self.rewrite(preprocess={"operations": operations})

    def compare(self, **options: Any) -> Report | CascadeReport:
        return run(Options(pipeline_file=self.file, repository=self.repository, **options))

    def parity(self, *arguments: object, status: int = 0) -> Result:
        """``onestream parity`` with its file, and these arguments, which ends with this status."""
        command = ["parity", str(self.file), *map(str, arguments), "--repository", str(self.repository)]
        result = CliRunner().invoke(app, command, env={"COLUMNS": "120"})
        assert result.exit_code == status, result.output
        return result


def words(result: Result) -> str:
    """What was printed, whose lines are broken at the width of a terminal."""
    return " ".join(result.stdout.split())


def a_report(subjects: Sequence[SubjectReport], **fields: Any) -> Report:
    usual = {"pipeline": "mine", "definition_digest": "0" * 64, "versions": {}, "photos": [], "bad_images": {}}
    return Report(**{**usual, "problems": [], "not_compared": {}, "subjects": subjects, **fields})
