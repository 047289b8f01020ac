"""The accounts of this machine: who else can log in, and reach what listens on 127.0.0.1."""

import os

FIRST = 1000  # the first id of a person's account; system accounts have smaller ones
NOBODY = 65534
CLOSED = ("nologin", "false", "sync")  # shells of accounts that cannot log in


def other_accounts() -> list[str]:
    """Return the names of accounts that can log in, other than root and the one of this process."""
    try:
        import pwd
    except ImportError:  # this system has no such list
        return []
    return sorted(
        account.pw_name
        for account in pwd.getpwall()
        if account.pw_uid >= FIRST
        and account.pw_uid not in (NOBODY, os.geteuid())
        and not account.pw_shell.endswith(CLOSED)
    )
