"""Time a small BERT and a small GPT-2: rounds by `fedpd.simulate` and by a plain PyTorch loop, and the loop in a block.

    python -m benchmarks.hugging_face

The models are made from configurations. It works on one core and in turns, prints the least processor time of the
repetitions, and takes two and a half minutes of it. The time of a round is the difference of a long and a short run, so
that it excludes the measurements before the first and after the last round. "First call" is one round in a process that
has compiled nothing, with everything; the check of the module when the problem is built stands before it.
"""

import os

os.environ["JAX_NUM_CPU_DEVICES"] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
os.environ["FEDPD_CACHE"] = "off"

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import fedpd.torch
from fedpd import algorithms, data, oracles, problems

AGENTS, SAMPLES, LENGTH, WORDS, BATCH, STEPS, MORE, STEP = 4, 32, 32, 200, 8, 10, 40, 0.01
SHORT, LONG, REPETITIONS = 2, 6, 5
LOOP, BLOCK = 1.2, 1.1  # the goals: at most so many times the time of the plain loop

Losses = Callable[[nn.Module, Tensor, Tensor], Tensor]


def bert() -> nn.Module:
    sizes: Any = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    return BertForSequenceClassification(BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **sizes))


def gpt2() -> nn.Module:
    sizes: Any = {"n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, bos_token_id=0, eos_token_id=0, **sizes))


def of_sentence(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(net(input_ids=x).logits, y)


def of_tokens(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(net(input_ids=x).logits.flatten(0, 1), y.flatten())


def train(net: nn.Module, x: Tensor, y: Tensor, loss: Losses, steps: int = STEPS) -> None:
    """Take the local steps of one agent."""
    optimizer = torch.optim.SGD(net.parameters(), lr=STEP)
    for _ in range(steps):
        rows = torch.randint(len(x), (BATCH,))
        optimizer.zero_grad()
        loss(net, x[rows], y[rows]).backward()
        optimizer.step()


def rounds_of_loop(net: nn.Module, agents: list[tuple[Tensor, Tensor]], loss: Losses, rounds: int) -> None:
    """Run FedAvg in PyTorch."""
    net.train()
    parameters: list[Tensor] = list(net.parameters())
    model = [one.detach().clone() for one in parameters]
    for _ in range(rounds):
        total = [torch.zeros_like(one) for one in model]
        for x, y in agents:
            with torch.no_grad():
                torch._foreach_copy_(parameters, model)
            train(net, x, y, loss)
            torch._foreach_add_(total, [one.detach() for one in parameters])
        model = [one / len(agents) for one in total]


def seconds(run: Callable[..., Any], *arguments: Any) -> float:
    begin = time.process_time()
    run(*arguments)
    return time.process_time() - begin


def compare(name: str, net: nn.Module, tokens: np.ndarray, targets: np.ndarray, loss: Losses) -> None:
    torch.manual_seed(0)
    agents = [(torch.tensor(x), torch.tensor(y)) for x, y in zip(tokens, targets, strict=True)]
    samples = {str(i): {"x": {"input_ids": x}, "y": y} for i, (x, y) in enumerate(zip(tokens, targets, strict=True))}
    task, classes = (problems.network, None) if loss is of_sentence else (problems.next_token, False)
    made: list[Any] = []
    build = seconds(lambda: made.append(task(net, data.from_arrays(samples, classes=classes))))
    method = algorithms.fedavg(oracle=oracles.sgd(STEP, STEPS, BATCH))

    def simulated(rounds: int) -> None:
        fedpd.simulate(method, made[0], rounds=rounds, metrics_every=rounds, progress=False)

    def looped(rounds: int) -> None:
        rounds_of_loop(net, agents, loss, rounds)

    first = seconds(simulated, 1)
    runs = [(go, rounds) for go in (simulated, looped) for rounds in (SHORT, LONG)]
    short, long = np.min([[seconds(*run) for run in runs] for _ in range(REPETITIONS)], axis=0).reshape(2, 2).T
    here, loop = (long - short) / (LONG - SHORT)
    number = sum(parameter.numel() for parameter in net.parameters())
    print(f"{name}, {number:,} parameters: check {build:.1f} s, first call {first:.1f} s")
    print(f"  a round: {here:.3f} s by simulate, {loop:.3f} s by the loop: {here / loop:.2f} times (goal {LOOP})")
    own, agent = algorithms.fedpd(eta=0.1, oracle=oracles.own_loop(), start="server"), fedpd.torch.Agent()

    def in_block(steps: int) -> None:
        with fedpd.torch.local(own, net, agent):
            train(net, *agents[0], loss, steps)

    for steps in (STEPS, MORE):
        ways: list[Any] = [(in_block, (steps,)), (train, (net, *agents[0], loss, steps))]
        block, alone = np.min([[seconds(go, *given) for go, given in ways] for _ in range(2 * REPETITIONS)], axis=0)
        times = f"{block / alone:.2f} times (goal {BLOCK})"
        print(f"  {steps} steps: {block:.4f} s in the block, {alone:.4f} s alone: {times}")


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, WORDS, (AGENTS, SAMPLES, LENGTH + 1))
    compare("BERT", bert(), tokens[:, :, 1:], rng.integers(0, 2, (AGENTS, SAMPLES)), of_sentence)
    compare("GPT-2", gpt2(), tokens[:, :, :-1], tokens[:, :, 1:], of_tokens)


if __name__ == "__main__":
    main()
