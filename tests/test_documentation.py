"""What the documentation tells a reader to run, run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from counterpoint import Recipe
from counterpoint.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
NEED_DOWNLOADS = {"proxy_tuning", "contrastive"}


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.embedded
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("counterpoint ")])
def test_commands_of_the_readme(command: str, workplace: Path) -> None:
    result = CliRunner().invoke(app, shlex.split(command)[1:], input="/weight pirate 0.5\n/quit\n")
    assert result.exit_code == 0, result.output
    if "answers.jsonl" in command and " generate " in command:
        answers = [json.loads(line) for line in (workplace / "answers.jsonl").read_text().splitlines()]
        assert [answer["tokens"] > 0 for answer in answers] == [True] * 3
    elif " generate " in command:
        assert json.loads(result.stdout)["text"]
    elif " save " in command:
        assert Recipe.read("pirate-scientist") == Recipe.read("examples/pirate_scientist.yaml")


def test_make_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {c.split()[1] for c in COMMANDS if c.startswith("make ")}
    assert named == {"demo", "test"}
    assert named <= targets


@pytest.mark.embedded
def test_python_of_the_readme(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert "sea" in capsys.readouterr().out


def test_recipe_shown_in_the_readme_is_the_example() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert (ROOT / "examples/pirate_scientist.yaml").read_text().endswith(shown)


@pytest.mark.embedded
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_explain_and_those_on_this_machine_speak(path: Path, workplace: Path) -> None:
    result = CliRunner().invoke(app, ["explain", str(path)])
    assert result.exit_code == 0, result.output
    command = re.search(rf"#   (counterpoint generate examples/{path.name} .*)", path.read_text())
    assert command is not None
    result = CliRunner().invoke(app, [*shlex.split(command[1])[1:], "--max-new-tokens", "3"])
    if path.stem in NEED_DOWNLOADS:
        assert result.exit_code == 1
        assert "error: cannot fetch 'HuggingFaceTB/SmolLM2-1.7B" in result.output  # the tests are offline
    else:
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("page", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "ARCHITECTURE.md"])
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("room", ["composition", "diagnostics", "studies", ""])
def test_the_map_has_every_file(room: str) -> None:
    folder, named, here = ROOT / "src/counterpoint" / room, set(), ""
    table = (ROOT / "ARCHITECTURE.md").read_text().split("## The rooms")[1].split("##")[0]
    for first, second in re.findall(r"^\| ([^|]*)\| ([^|]*)\|", table, re.MULTILINE):
        if names := re.findall(r"`(\w+)(/?)`", first):
            here = names[0][0] if names[0][1] else ""
            named |= {name for name, slash in names if not slash} if not room else set()
        named |= set(re.findall(r"`(\w+)/?`", second)) if room and here == room else set()
    there = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")} if room not in ("", "studies") else set()
    assert named == there | packages
