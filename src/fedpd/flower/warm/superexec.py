"""Flower's `flower-superexec`, which here survives an answer with HTTP 500."""

from flwr.supercore.cli import flower_superexec

from fedpd.flower.warm.retries import retry_internal_errors


def main() -> None:
    """Run `flower-superexec`."""
    retry_internal_errors()
    flower_superexec()


if __name__ == "__main__":
    main()
