"""The page of commands: what `fedpd COMMAND --help` says."""

from typing import Any

from fedpd import cli


def describe_commands() -> str:
    """Return the help of every command, with its options in a table."""
    import typer

    group: Any = typer.main.get_command(cli.app)
    return "\n\n".join(
        _describe("fedpd", command, name) for name, command in sorted(group.commands.items())
    )


def _describe(parents: str, command: Any, name: str) -> str:
    if hasattr(command, "commands"):
        inner = sorted(command.commands.items())
        return "\n\n".join(
            _describe(f"{parents} {name}", each, below) for below, each in inner
        )
    lines = [
        f"## {parents} {name}",
        "",
        _escape(command.help or ""),
        "",
        "| | | default |",
        "| --- | --- | --- |",
    ]
    lines += [_row(parameter) for parameter in command.params if parameter.name != "help"]
    return "\n".join(lines)


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        spelled = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        spelled = ", ".join(f"`{option}`" for option in parameter.opts)
    has_default = not (
        parameter.default is None or callable(parameter.default) or parameter.default is False
    )
    default = (
        "required" if parameter.required else f"`{parameter.default}`" if has_default else ""
    )
    return f"| {spelled} | {_escape(getattr(parameter, 'help', None) or '')} | {default} |"


def _escape(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "&#124;")
