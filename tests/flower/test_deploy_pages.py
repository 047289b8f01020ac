"""The command blocks of the pages about deployment: fedpd's commands run as printed, Flower's commands exist."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
import typer.main
from typer.testing import CliRunner

from fedpd.cli import app
from fedpd.flower.clients.site_policy import read_policy
from fedpd.flower.local import down, programs, read
from fedpd.flower.local.new_app import new_app

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "deploy.md", *sorted((DOCS / "deploy").glob("*.md"))]
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # flwr uses an old name of pathspec


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def lines(block: str) -> list[list[str]]:
    """The commands of a block as words, without comments and without variables before them."""
    joined = block.replace("\\\n", " ")
    found = [shlex.split(line, comments=True) for line in joined.splitlines()]
    return [words[next(i for i, word in enumerate(words) if "=" not in word) :] for words in found if words]


def run_lines(block: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the commands of a block, as far as they need no server, and return their output."""
    output = ""
    for words in lines(block):
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
        elif words[0] == "fedpd":
            output += CliRunner().invoke(app, words[1:], catch_exceptions=False).output
        elif words[0] == "ls":
            output += subprocess.run(words, capture_output=True, text=True, check=True).stdout
        else:
            assert os.access(words[0], os.X_OK), words
    return output


def test_the_page_about_several_machines_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / "deploy" / "machines.md"
    monkeypatch.chdir(tmp_path)
    Path("sites.toml").write_text(blocks(page, "toml")[0])
    first, _, _, second, _ = blocks(page, "sh")  # the others copy kits to machines
    assert "nginx.conf" in run_lines(first, monkeypatch)
    monkeypatch.setattr("socket.getaddrinfo", no_address)
    # As in the folder that install.sh makes of the kit; systemd does not start anything here.
    assert "cd /srv/fedpd/hospital-1\n" in second
    check, start = second.replace("/srv/fedpd", "kits").replace("sudo -u fedpd .venv/bin/", "").strip().rsplit("\n", 1)
    assert start.startswith("sudo systemctl start fedpd-hospital-1")
    said = run_lines(check, monkeypatch)
    assert "PROBLEM  name of the server: fl.example.org has no address" in said
    assert said.count("PROBLEM") == 1


def no_address(host: str, *_: object, **__: object) -> None:
    raise OSError(-2, "Name or service not known")


def test_the_page_about_control_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / "deploy" / "control.md"
    monkeypatch.chdir(tmp_path)
    new_app(tmp_path / "my-app", "jax")
    digits = run_lines(blocks(page, "sh")[0], monkeypatch).strip()
    rules, apps = blocks(page, "toml")
    Path("policy.toml").write_text(apps.replace("...", digits) + rules)  # before its tables
    found = read_policy(Path("policy.toml"))
    assert (found.secure, found.methods, found.min_clients, found.apps) == (True, ("fedpd",), 3, (digits,))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # in flwr's own command line
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_the_pages_exists(page: Path) -> None:
    from flwr.cli.app import app as flower

    commands = [words for block in blocks(page, "sh") for words in lines(block)]
    groups = {"fedpd": typer.main.get_command(app), "flwr": typer.main.get_command(flower)}
    for first, *others in commands:
        program, words = first, others
        if [program, *words[:2]] == ["sudo", "-u", "fedpd"]:  # a kit's own program, as the kit's user
            _, _, program, *words = words
            if program == "env":
                _, program, *words = words
        program = Path(program).name
        if program not in groups:
            continue
        command = groups[program]
        while isinstance(command, click.Group):
            assert words[0] in command.commands, (program, words)
            command, words = command.commands[words[0]], words[1:]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, (program, words)


@pytest.mark.slow
def test_five_minutes_on_one_machine_run_as_printed(tmp_path: Path) -> None:
    """With one round instead of twenty, and without the installation of the app, whose packages are there."""
    block = blocks(DOCS / "deploy.md", "sh")[0]
    assert "flwr run . fedpd --stream\n" in block
    short = block.replace("--stream\n", "--stream --run-config 'rounds=1 evaluate-every=0'\n")
    environment = os.environ | {"PATH": f"{programs.bin_folder()}{os.pathsep}{os.environ['PATH']}"}
    folder = tmp_path / "my-app" / "runs" / "federation"
    try:
        script = f"set -e\npip() {{ :; }}\n{short}"
        command = ["bash", "-c", script]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (folder / "results" / "model.safetensors").exists()
    finally:
        if read(folder) is not None:
            down(folder)
