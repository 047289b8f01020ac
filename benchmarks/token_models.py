"""Time a round of FedAvg with a small BERT: fedpd's compiled simulation beside a plain PyTorch loop, in processor time.

Run `python -m benchmarks.token_models`. Both do 4 agents with 10 steps on 8 texts of 32 tokens, with one thread of
PyTorch, alternating, after one round that is not measured. The lines are milliseconds of a processor per round.
"""

import copy
import time
from typing import Any

import numpy as np
import torch

from fedpd import algorithms, data, oracles, problems, simulate

AGENTS, TEXTS, LENGTH, BATCH, STEPS, ROUNDS, REPEATS = 4, 32, 32, 8, 10, 5, 3


def bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=500, max_position_embeddings=LENGTH, num_labels=3, **sizes, **off)
    return BertForSequenceClassification(config)


def samples(agent: int) -> dict[str, Any]:
    rng = np.random.default_rng(agent)
    tokens = rng.integers(0, 500, (TEXTS, LENGTH))
    return {"x": {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}, "y": tokens[:, 0] % 3}


def plain_round(module: Any, agents: list[Any]) -> None:
    """Do one round of FedAvg in PyTorch."""
    start, total = copy.deepcopy(module.state_dict()), None
    for own in agents:
        module.load_state_dict(start)
        optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
        for _ in range(STEPS):
            rows = torch.randint(0, TEXTS, (BATCH,))
            scores = module(**{name: leaf[rows] for name, leaf in own["x"].items()}).logits
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(scores, own["y"][rows]).backward()
            optimiser.step()
        state = {name: leaf / AGENTS for name, leaf in module.state_dict().items()}
        total = state if total is None else {name: total[name] + leaf for name, leaf in state.items()}
    module.load_state_dict(total)


def main() -> None:
    torch.set_num_threads(1)
    module, own = bert(), [samples(i) for i in range(AGENTS)]
    tensors = [
        {"x": {k: torch.from_numpy(v) for k, v in one["x"].items()}, "y": torch.from_numpy(one["y"])} for one in own
    ]
    problem = problems.network(bert(), data.from_arrays(dict(enumerate(own))), check=False)
    method = algorithms.fedavg(oracle=oracles.sgd(step=0.05, iterations=STEPS, batch=BATCH))

    def run(rounds: int) -> float:
        before = time.process_time()
        simulate(method, problem, rounds=rounds, metrics_every=10**6, progress=False)
        return time.process_time() - before

    print(f"the first call of simulate: {run(1):.1f} s")
    plain_round(module, tensors)
    for _ in range(REPEATS):
        ours = (run(1 + ROUNDS) - run(1)) / ROUNDS
        before = time.process_time()
        for _ in range(ROUNDS):
            plain_round(module, tensors)
        print(
            f"fedpd {1000 * ours:.0f} ms, PyTorch {1000 * (time.process_time() - before) / ROUNDS:.0f} ms", flush=True
        )


if __name__ == "__main__":
    main()
