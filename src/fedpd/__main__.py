"""The command `fedpd`, also as `python -m fedpd`. It handles Ctrl-C before it imports anything that takes time."""

import signal

from fedpd.base.interrupts import CODE, end_at_once, leave


def run() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, end_at_once)
    from fedpd.cli import main

    try:
        main()
    except SystemExit as end:
        if end.code == CODE:
            leave()
        raise


if __name__ == "__main__":
    run()
