"""Running a study: every finished cell is a file, so that a run can be interrupted and gone on with."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from counterpoint.errors import StudyError
from counterpoint.files import versions, write_whole
from counterpoint.studies.findings import EXPLAINED, read_findings, summarise
from counterpoint.studies.study import Experiment, Options, Settings, Study

FORMAT = "counterpoint-study/1"
RESULTS = "results.json"


@dataclass(frozen=True)
class Task:
    """One cell of a grid: an experiment at some settings and a seed, and the file that holds what it found.

    `label` says which point of the grid it is, in words.
    """

    study: str
    experiment: Experiment
    settings: Settings
    seed: int
    folder: Path
    label: str = ""

    @property
    def key(self) -> dict[str, Any]:
        """What a cell is known by. Change the settings, or raise the revision, and it is another cell."""
        return {
            "study": self.study,
            "experiment": self.experiment.name,
            "revision": self.experiment.revision,
            "settings": dict(self.settings),
            "seed": self.seed,
        }

    @property
    def path(self) -> Path:
        digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:12]
        return self.folder / "cells" / self.experiment.name / f"{digest}-seed{self.seed}.json"

    @property
    def done(self) -> bool:
        return self.path.exists()


def plan(study: Study, options: Options, folder: Path, only: str | None = None) -> list[Task]:
    """Every cell of the study, or of one experiment, in the order they run in."""
    return [
        Task(study.name, experiment, settings, seed, folder, label)
        for experiment in _chosen(study, only)
        for settings, label in _labelled(experiment.grid(options))
        for seed in experiment.seeds_for(options)
    ]


def run(
    study: Study,
    options: Options,
    folder: Path,
    only: str | None = None,
    tell: Callable[[Task], None] = lambda task: None,
) -> list[str]:
    """Run the cells that are missing, and write `folder`/results.json, after each experiment anew.

    Args:
        study: what to run.
        options: how.
        folder: where cells and results are kept; made if need be.
        only: the name of one experiment; the others' results stay as they are.
        tell: called before each missing cell is run.

    Returns:
        Notices: what a user should know about cells found in the folder.

    Raises:
        StudyError: the folder holds something else, or a cell failed. What was finished is kept.
    """
    _check_same_kind(_results_so_far(folder, study), options, folder)
    notices = []
    for experiment in _chosen(study, only):
        tasks = plan(study, options, folder, experiment.name)
        for task in tasks:
            if not task.done:
                tell(task)
                _run_cell(task)
        cells = [_read_cell(task) for task in tasks]
        notices += _notices(experiment, tasks, cells)
        results = _results_so_far(folder, study)  # read late: another experiment may run beside this one
        entries = {**results["experiments"], experiment.name: _entry(experiment, options, cells)}
        order = [e.name for e in study.experiments if e.name in entries]
        results["experiments"] = {name: entries[name] for name in [*order, *(n for n in entries if n not in order)]}
        write_whole(folder / RESULTS, to_json(results))
    return notices


def read_results(folder: Path, study: str) -> dict[str, Any]:
    """The results of a run.

    Raises:
        StudyError: there are none, or they are of another study.
    """
    path = folder / RESULTS
    if not path.exists():
        raise StudyError(f"{path}: no such file; run the study first: counterpoint study {study}")
    try:
        results: dict[str, Any] = json.loads(path.read_text("utf-8"))
        found = results["format"], results["study"]
    except (ValueError, KeyError, TypeError):
        raise StudyError(f"{path}: not the results of a study; name another folder with --out") from None
    if found != (FORMAT, study):
        raise StudyError(
            f"{path}: results of the study {found[1]} ({found[0]}), not of {study} ({FORMAT}); "
            "name another folder with --out"
        )
    return results


def to_json(results: Any) -> str:
    """Indented, but lists of plain values on one line, so that a diff of two runs can be read."""

    def lines(value: Any, indent: str) -> str:
        inner = indent + " "
        if isinstance(value, Mapping) and value:
            items = [f"{inner}{json.dumps(k, ensure_ascii=False)}: {lines(v, inner)}" for k, v in value.items()]
            return "{\n" + ",\n".join(items) + f"\n{indent}}}"
        if isinstance(value, list) and any(isinstance(one, Mapping | list) for one in value):
            return "[\n" + ",\n".join(f"{inner}{lines(one, inner)}" for one in value) + f"\n{indent}]"
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    return lines(results, "") + "\n"


def _labelled(grid: Sequence[Settings]) -> list[tuple[Settings, str]]:
    """Each point with the values of the first few settings that tell the points apart."""
    varying = [key for key in grid[0] if any(settings.get(key) != grid[0][key] for settings in grid)]
    for count in range(len(varying) + 1):
        labels = [" ".join(str(settings.get(key)) for key in varying[:count]) for settings in grid]
        if len(set(labels)) == len(grid):
            break
    return list(zip(grid, labels, strict=True))


def _chosen(study: Study, only: str | None) -> Sequence[Experiment]:
    return [experiment for experiment in study.experiments if only in (None, experiment.name)]


def _results_so_far(folder: Path, study: Study) -> dict[str, Any]:
    if (folder / RESULTS).exists():
        return read_results(folder, study.name)
    return {"format": FORMAT, "study": study.name, "experiments": {}}


def _check_same_kind(before: Mapping[str, Any], options: Options, folder: Path) -> None:
    """One results.json holds experiments of one kind of run; only their seeds may differ in number."""
    for name, entry in before["experiments"].items():
        for key in ("quick", "scale", "data"):
            was, now = entry["options"][key], _recorded(options)[key]
            if was != now:
                raise StudyError(
                    f"{folder / RESULTS}: {name} was run with {key} {_word(was)}, now {_word(now)}; "
                    "name another folder with --out"
                )


def _run_cell(task: Task) -> None:
    begun = time.perf_counter()
    try:
        figures = {name: _plain(value) for name, value in task.experiment.cell(task.settings, task.seed).items()}
        for name, value in figures.items():
            _check_figure(task.experiment, name, value)
    except Exception as error:
        raise StudyError(
            f"{task.study}, experiment {task.experiment.name}, seed {task.seed}, {json.dumps(dict(task.settings))}: "
            f"{type(error).__name__}: {error}; what was finished is kept in {task.folder}"
        ) from error
    record = {
        **task.key,
        "versions": versions(),
        "seconds": round(time.perf_counter() - begun, 1),
        "figures": figures,
    }
    write_whole(task.path, to_json(record))


def _read_cell(task: Task) -> dict[str, Any]:
    try:
        cell: dict[str, Any] = json.loads(task.path.read_text("utf-8"))
        same = {key: cell[key] for key in task.key} == json.loads(json.dumps(task.key))
        complete = same and {"versions", "seconds", "figures"} <= set(cell)
    except (ValueError, KeyError, TypeError):
        complete = False
    if not complete:
        raise StudyError(f"{task.path}: not the cell that belongs there; delete it, and it is run again")
    return cell


def _entry(experiment: Experiment, options: Options, cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """An experiment's part of results.json."""
    points = []
    for settings in experiment.grid(options):
        here = [cell for cell in cells if cell["settings"] == json.loads(json.dumps(dict(settings)))]
        figures = {
            name: summarise([cell["figures"][name] for cell in here], experiment.measures[_kind(name)])
            for name in here[0]["figures"]
        }
        points.append({"settings": dict(settings), "figures": figures})
    entry: dict[str, Any] = {
        "title": experiment.title,
        "revision": experiment.revision,
        "options": _recorded(options),
        "seeds": list(experiment.seeds_for(options)),
        "versions": {name: ", ".join(_distinct(cell["versions"].get(name) for cell in cells)) for name in versions()},
        "seconds": round(sum(cell["seconds"] for cell in cells)),
        "intervals": EXPLAINED,
        "measures": {name: measure.text for name, measure in experiment.measures.items()},
        "points": points,
        "compared": {},
    }
    compared = experiment.compare(read_findings(entry))
    entry["compared"] = {name: interval._asdict() for name, interval in compared.items()}
    return entry


def _notices(experiment: Experiment, tasks: Sequence[Task], cells: Sequence[Mapping[str, Any]]) -> list[str]:
    notices = []
    folder = tasks[0].path.parent
    others = {path.name for path in folder.glob("*.json")} - {task.path.name for task in tasks}
    if others:
        notices.append(
            f"{experiment.name}: {len(others)} cell{'s' * (len(others) > 1)} in {folder} "
            "of other settings, seeds or revisions took no part"
        )
    now = versions()
    for package in now:
        made = [v for v in _distinct(cell["versions"].get(package) for cell in cells) if v != now[package]]
        if made:
            notices.append(
                f"{experiment.name}: some cells were made with {package} {', '.join(made)}, this is {now[package]}; "
                f"they are kept, as settings and revision are the same; to make them anew, delete {folder}"
            )
    return notices


def _recorded(options: Options) -> dict[str, Any]:
    """The options as results have them: of --data the name alone, not where it lay."""
    return {**asdict(options), "data": options.data and Path(options.data).name}


def _check_figure(experiment: Experiment, name: str, value: Any) -> None:
    if _kind(name) not in experiment.measures:
        raise ValueError(f"measure {name!r} is not declared; the experiment's measures are {[*experiment.measures]}")
    numbers = value if isinstance(value, list) else [value]
    for number in numbers:
        if number is not None and not (isinstance(number, int | float) and math.isfinite(number)):
            raise ValueError(f"measure {name!r} is {number!r}; a number is needed, or None where it is undefined")


def _plain(value: Any) -> Any:
    """Numbers of numpy or torch, and sequences, as JSON has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _kind(name: str) -> str:
    return name.partition("/")[0]


def _distinct(values: Iterable[str | None]) -> list[str]:
    return sorted({value or "none" for value in values})


def _word(value: Any) -> str:
    return {None: "none", True: "on", False: "off"}.get(value, str(value))
