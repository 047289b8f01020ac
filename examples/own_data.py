"""Train on your own data: texts by speaker in LEAF's json, and a Parquet table with a column for the client.

python examples/own_data.py
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import fedpd
from fedpd import algorithms, data, networks, oracles, problems

LINES = {
    "sheep": "baa baa baa, said the sheep. baa baa baa, said the lamb. " * 3,
    "cow": "moo moo, said the cow. moo moo, said the calf. and moo again. " * 3,
    "hen": "cluck cluck cluck, said the hen. cluck, said the chick. " * 3,
}
rng = np.random.default_rng(0)


def write_texts(path: Path, length: int = 10) -> None:
    """Write samples as LEAF does: x has `length` characters, y is the next character."""
    users = {
        name: {"x": [text[i : i + length] for i in range(len(text) - length)], "y": list(text[length:])}
        for name, text in LINES.items()
    }
    path.write_text(json.dumps({"users": list(users), "user_data": users}))


def write_table(path: Path) -> None:
    """Write one row per patient, with the hospital in a column of its own."""
    age, dose = rng.normal(50, 15, 600), rng.normal(0, 1, 600)
    columns = {"hospital": rng.choice(["north", "south", "west"], 600), "age": (age - 50) / 15, "dose": dose}
    pq.write_table(pa.table(columns | {"healed": (0.1 * (50 - age) + 2 * dose > 0).astype(int)}), path)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_texts(Path(folder, "texts.json"))
        write_table(Path(folder, "table.parquet"))
        texts = data.leaf(Path(folder, "texts.json"))
        table = data.parquet(
            Path(folder, "table.parquet"), client="hospital", features=["age", "dose"], label="healed", dtype=np.float32
        )
    networks_for = {"texts": (texts, networks.GRU(80, width=32), 2.0), "table": (table, networks.MLP(2, ()), 0.5)}
    for name, (samples, module, step) in networks_for.items():
        problem = problems.network(module, data.split(samples, 0.2))
        method = algorithms.fedpd(eta=10.0, oracle=oracles.sgd(step, iterations=20, batch=10), start="server")
        run = fedpd.simulate(method, problem, rounds=20, metrics_every=20)
        start, end = run.history["test_accuracy"]
        print(f"{name}: {samples.agents} agents, {samples.samples} samples, test accuracy {start:.2f} -> {end:.2f}")


if __name__ == "__main__":
    main()
