"""The address of a federation's live page, and the process that serves it (`fedpd.flower.local.dashboard`)."""

import socket
import sys
import urllib.request
from pathlib import Path
from typing import NamedTuple

from fedpd.base.checks import refuse
from fedpd.flower.local.processes import Member

NAME = "dashboard"


class Page(NamedTuple):
    """The address of a live page."""

    host: str = "127.0.0.1"
    port: int = 8050

    @property
    def url(self) -> str:
        """The address for a browser on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def page_member(folder: Path, home: Path, page: Page) -> Member:
    """Return the process that serves the page of the federation in a folder, not started."""
    command = [sys.executable, "-m", "fedpd.flower.local.dashboard", str(folder), page.host, str(page.port)]
    return Member(NAME, command, str(home), str(folder / "logs" / f"{NAME}.log"))


def address_of(member: Member) -> Page:
    """Return the address of the page that a process serves."""
    return Page(member.command[-2], int(member.command[-1]))


def check_free(page: Page) -> None:
    """Refuse an address at which no page can be served now."""
    family = socket.AF_INET6 if ":" in page.host else socket.AF_INET
    try:
        socket.create_server((page.host, page.port), family=family).close()
    except OSError as error:
        remedy = "Give another --dashboard-port or --dashboard-host"
        refuse("--dashboard", f"{page.host}:{page.port}", f"cannot be used ({error.strerror or error})", remedy)


def is_served(page: Page) -> bool:
    """Return whether the page answers."""
    try:
        with urllib.request.urlopen(f"{page.url}/live.js", timeout=1.0) as answer:
            return answer.status == 200
    except OSError:
        return False
