"""Fuzz the parsers of files byte by byte with atheris, which is led by the branches of fedpd that a file reaches.

    pip install atheris
    python tools/fuzz_bytes.py leaf -max_total_time=60

The name is one of the functions below; options of libFuzzer follow. Every file must be read, or refused with a
FedpdError. Another exception ends the program, and the file that caused it is in the current folder.
"""

import contextlib
import json
import sys
import tempfile
from pathlib import Path

import atheris
import pyarrow as pa
import pyarrow.parquet as pq

with atheris.instrument_imports(include=["fedpd"], enable_loader_override=False):
    import numpy as np

    from fedpd import FedpdError, clock
    from fedpd.base import checkpoint
    from fedpd.experiments import run_folder
    from fedpd.experiments.experiment import read_outline
    from fedpd.flower.local.sites import read_sites
    from fedpd.report.data import load

PLACE = Path(tempfile.mkdtemp())


def written(content: bytes, name: str) -> Path:
    """Return a file with this content."""
    path = PLACE / name
    path.write_bytes(content)
    return path


def experiment(content: bytes) -> None:
    """Read an experiment file, without making its problem."""
    read_outline(content.decode(errors="replace"))


def leaf(content: bytes) -> None:
    """Read a file of LEAF."""
    load(written(content, "all.json"), client=None)


def csv(content: bytes) -> None:
    """Read a CSV file."""
    load(written(content, "rows.csv"), client="client", label="label")


def parquet(content: bytes) -> None:
    """Read a Parquet file."""
    load(written(content, "rows.parquet"), client="client", label="label")


def history(content: bytes) -> None:
    """Read the histories of a run folder."""
    run_folder.read_histories(written(content, run_folder.HISTORY).parent)


def safetensors(content: bytes) -> None:
    """Read a checkpoint."""
    checkpoint.read(written(content, "round-1.safetensors"))


def clocks(content: bytes) -> None:
    """Read clocks in TOML and CSV."""
    for name in ("clock.toml", "clock.csv"):
        with contextlib.suppress(FedpdError):
            clock.from_file(written(content, name))


def sites(content: bytes) -> None:
    """Read the description of a federation."""
    read_sites(written(content, "sites.toml"))


def examples() -> dict[str, bytes]:
    """Return one valid file per parser, from which the fuzzer starts."""
    samples = {"a": {"x": [[0.5, 1.0], [2.0, 3.0]], "y": [0, 1]}, "b": {"x": [[4.0, 5.0]], "y": [1]}}
    rows = pa.BufferOutputStream()
    pq.write_table(pa.table({"client": ["a", "a", "b"], "x": [0.5, 1.5, 2.5], "label": [0, 1, 1]}), rows)
    checkpoint.write(PLACE / "one", {"x": np.arange(3.0)}, {"round": 1})
    run_folder.write_histories(PLACE, {("FedPD", 0): {"round": np.arange(2), "loss": np.ones(2)}})
    return {
        "experiment": b'[problem]\nname = "random_quadratic"\nagents = 3\n[run]\nrounds = 2\nseeds = [0]\n'
        b'clock = { up = 1, down = "1 MB/s" }\n[[algorithm]]\nname = "local_gd"\nstep = 0.1\nup = { name = "sign" }\n',
        "leaf": json.dumps({"users": ["a", "b"], "num_samples": [2, 1], "user_data": samples}).encode(),
        "csv": b"client,x,label\na,0.5,0\nb,1.5,1\n",
        "parquet": rows.getvalue().to_pybytes(),
        "history": (PLACE / run_folder.HISTORY).read_bytes(),
        "safetensors": (PLACE / "one").read_bytes(),
        "clocks": b'up = { median = "3 Mbit/s", sigma = 0.5 }\ndown = [1, 2]\n',
        "sites": b'[server]\nhost = "a"\n[[sites]]\nname = "b"\nconfig = { x = 1 }\npolicy = { secure = true }\n',
    }


def main() -> None:
    """Fuzz one parser."""
    parsers = (experiment, leaf, csv, parquet, history, safetensors, clocks, sites)
    targets = {function.__name__: function for function in parsers}
    if len(sys.argv) < 2 or sys.argv[1] not in targets:
        sys.exit(f"Give the name of a parser: {', '.join(targets)}.")
    target = targets[sys.argv[1]]

    def use(content: bytes) -> None:
        with contextlib.suppress(FedpdError):
            target(content)

    corpus = PLACE / "corpus"
    corpus.mkdir()
    (corpus / "valid").write_bytes(examples()[target.__name__])
    use(examples()[target.__name__])
    atheris.Setup([sys.argv[0], *sys.argv[2:], str(corpus)], use)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
