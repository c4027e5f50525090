"""The table of ``scale_out`` in docs/results.md."""

from __future__ import annotations

from benchmarks.photos import title
from benchmarks.result_files import Raw, short_commit
from onestream.measure.spread import Spread, ratio
from onestream.measure.tables import markdown

FILE_NAME = "scale-out.json"
IN_PROCESS, ON_RAY, BULK = "in process", "bulk --ray", "bulk"
KILLS = "kills"


def rates(results: Raw) -> dict[str, dict[int, float]]:
    """Images/s by way and round."""
    return {name: {n: one[name] for n, one in enumerate(results["rounds"])} for name in (IN_PROCESS, ON_RAY, BULK)}


def table(results: Raw) -> str:
    """Images/s of each way, of Ray's divided by the others', the command's memory by its list's length, and kills."""
    of_ways = rates(results)
    about = (
        f"Scale out: `classify` over {results['images']} photos of {title(results['size'])}, "
        f"{results['machine']['cores']} cores; {results['started_utc'][:10]}, "
        f"commit {short_commit(results['commit'])}, ray {results['versions']['ray']}. "
        f"Median (quartiles) of {len(results['rounds'])} rounds."
    )
    says = {
        IN_PROCESS: "the same operations in one process a core, without any engine",
        ON_RAY: "`onestream bulk --ray`",
        BULK: "`onestream bulk` against a server on the same machine",
    }
    rows = []
    for name, of_way in of_ways.items():
        against = ratio(of_ways[ON_RAY], of_way) if name != ON_RAY else None
        rows.append([says[name], Spread.of(list(of_way.values())).text(1), against.text(2) if against else ""])
    counts = [f"{held / 1e6:.0f} MB with {int(count):,}" for count, held in results["memory_bytes"].items()]
    held = f"The command of `--ray` holds at most {' and '.join(counts)} names in its list."
    return f"{about}\n\n{markdown(['way', 'images/s', '`--ray` ÷ it'], rows)}\n{held}\n{_of_kills(results)}"


def _of_kills(results: Raw) -> str:
    """Rows lost and doubled where something was killed; empty where that was not counted."""
    if KILLS not in results:
        return ""
    kills = results[KILLS]
    says = {"worker": "a worker", "node": "a node", "driver": "the command, which is then given again"}
    rows = [[says[kind], *(str(kills[kind][name]) for name in ("runs", "lost", "doubled"))] for kind in says]
    about = (
        f"Killed with SIGKILL in the middle of a run of `bulk --ray` on two nodes of one machine; "
        f"{kills['started_utc'][:10]}, commit {short_commit(kills['commit'])}."
    )
    return f"\n{about}\n\n{markdown(['killed', 'runs', 'rows lost', 'rows doubled'], rows)}\n"
