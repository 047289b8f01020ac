"""Fine-tune a small transformer on the sentences of several speakers with LoRA: only the adapters are trained and sent.

    python examples/lora_by_speaker.py

The transformer is built from a configuration, and learns the language from text that belongs to nobody. Then its
weights are frozen, and the speakers train adapters of rank 4 on their own sentences, with FedAvg and with FedPD. Last,
FedPD runs on Flower, in one process, and ends at the same adapters.
"""

import os
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flwr.app import Context

import fedpd
from fedpd import algorithms, data, oracles, problems
from fedpd.flower import InProcessGrid, Settings, client_app, federate

WORDS = {
    "cook": ("the cook", ("salts", "stirs", "tastes", "burns"), ("the soup", "a sauce", "his stew", "the broth")),
    "sailor": ("the sailor", ("hoists", "furls", "mends", "hauls"), ("a sail", "the anchor", "his rope", "the mast")),
    "judge": ("the judge", ("weighs", "hears", "reads", "settles"), ("the case", "a claim", "her verdict", "the law")),
    "gardener": (
        "the gardener",
        ("prunes", "waters", "plants", "digs"),
        ("a rose", "the hedge", "her bulbs", "the bed"),
    ),
}
GENERAL = ("a child", ("sees", "likes", "paints", "finds"), ("the sea", "a bird", "her house", "the stars"))
LETTERS = sorted(set(" .abcdefghijklmnopqrstuvwxyz"))
ROUNDS = 8


class Config(NamedTuple):
    letters: int = len(LETTERS)
    length: int = 12  # letters that the model reads
    width: int = 32
    heads: int = 2
    layers: int = 1
    rank: int = 4  # of the adapters


class Block(nnx.Module):
    """Causal attention and a perceptron, each added to its normalised input; all products have adapters."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        width, self.heads = config.width, config.heads
        self.before, self.between = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)

        def dense(inputs: int, outputs: int) -> nnx.LoRALinear:
            return nnx.LoRALinear(inputs, outputs, lora_rank=config.rank, rngs=rngs)

        self.mixed, self.out = dense(width, 3 * width), dense(width, width)
        self.wide, self.narrow = dense(width, 4 * width), dense(4 * width, width)

    def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
        batch, length, width = x.shape
        parts = self.mixed(self.before(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = (parts[:, :, i] for i in range(3))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / (width // self.heads) ** 0.5
        seen = jnp.tril(jnp.ones((length, length), bool))
        weights = nnx.softmax(jnp.where(seen, scores, -1e9))
        x = x + self.out(jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(batch, length, width))
        return x + self.narrow(nnx.gelu(self.wide(self.between(x))))


class Transformer(nnx.Module):
    """Returns the scores of the letter that comes next."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        self.letters = nnx.Embed(config.letters, config.width, rngs=rngs)
        self.places = nnx.Embed(config.length, config.width, rngs=rngs)
        self.blocks = nnx.List([Block(config, rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(config.width, rngs=rngs)
        self.scores = nnx.Linear(config.width, config.letters, rngs=rngs)

    def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
        x = self.letters(x) + self.places(jnp.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.scores(self.norm(x)[:, -1])


def sentences(words: tuple[str, tuple[str, ...], tuple[str, ...]], number: int, length: int) -> dict[str, np.ndarray]:
    """Return the windows of a text, numbers of letters (n, length), and the letter after each."""
    rng = np.random.default_rng(len(words[0]))
    who, verbs, things = words
    text = " ".join(f"{who} {rng.choice(verbs)} {rng.choice(things)}." for _ in range(number))
    letters = np.array([LETTERS.index(letter) for letter in text], np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(letters, length + 1)
    return {"x": windows[:, :-1], "y": windows[:, -1]}


def is_adapter(path: str) -> bool:
    return "lora" in path


def main() -> None:
    config = Config()
    model = Transformer(config, nnx.Rngs(0))
    adam = oracles.optax(oracles.optimizer("adam", learning_rate=3e-3), iterations=200, batch=16, keep_state=True)
    general = data.from_arrays({"nobody": sentences(GENERAL, 40, config.length)}, classes=config.letters)
    base = problems.network(model, general, trainable=lambda path: not is_adapter(path))
    problems.load_model(model, fedpd.simulate(algorithms.fedavg(oracle=adam), base, rounds=1, progress=False).model)

    own = {name: sentences(words, 12, config.length) for name, words in WORDS.items()}
    speakers = data.split(data.from_arrays(own, classes=config.letters), 0.25)
    problem = problems.network(model, speakers, trainable=is_adapter)
    print(f"the transformer has {base.dimension:,} parameters, its adapters have {problem.dimension:,}")

    # The best of the steps 0.05, 0.1 and 0.2 for each method, and for FedPD of eta 5, 10 and 30.
    fedavg_lora = algorithms.fedavg(oracle=oracles.sgd(step=0.2, iterations=20, batch=16))
    fedpd_lora = algorithms.fedpd(eta=10.0, oracle=oracles.sgd(step=0.1, iterations=20, batch=16), start="server")
    for name, method in (("FedAvg", fedavg_lora), ("FedPD", fedpd_lora)):
        run = fedpd.simulate(method, problem, rounds=ROUNDS, metrics_every=ROUNDS, progress=False)
        before, after = run.history["test_accuracy"][[0, -1]]
        sent = run.history["bytes_up"][-1]
        print(f"{name} on adapters: test accuracy {before:.2f} -> {after:.2f}, {sent / 1e6:.2f} MB sent by all agents")
    whole = ROUNDS * len(WORDS) * 4 * base.dimension
    print(f"{ROUNDS} rounds of the whole transformer would send {whole / 1e6:.2f} MB")

    def local(context: Context) -> fedpd.Problem:
        return problem.subset([int(context.node_config["partition-id"])])  # each client knows the frozen weights

    def start(given: Mapping[str, Any]) -> Any:
        return problem.start

    os.environ["FEDPD_STATE"] = tempfile.mkdtemp()  # the folder in which clients keep their duals
    grid = InProcessGrid(client_app(lambda given: fedpd_lora, start, local), agents=len(WORDS), config={})
    result = federate(grid, fedpd_lora, problem.start, Settings(agents=len(WORDS), rounds=ROUNDS, poll=0.01))
    far = max(float(np.abs(a - b).max()) for a, b in zip(*map(_leaves, (result.model, run.model)), strict=True))
    print(f"on Flower: test accuracy {result.history['test_accuracy'][-1]:.2f}, adapters differ by at most {far:.0e}")
    problems.load_model(model, run.model)  # the module itself now has the trained adapters


def _leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


if __name__ == "__main__":
    main()
