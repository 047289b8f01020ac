"""FedPD around Hugging Face's Trainer: clients train the LoRA adapters of a small GPT-2, and send nothing else.

python train_lora.py
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # the model is made from a configuration, and nothing is downloaded

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments
from transformers.utils import logging

import fedpd.torch
from fedpd import algorithms, oracles

CLIENTS, ROUNDS, LENGTH, WORDS = 3, 5, 12, 24


def texts(client: int, number: int) -> list[dict[str, torch.Tensor]]:
    """Return texts of one client, which count through the words and begin with words of its own."""
    rng = np.random.default_rng(client)
    begins = rng.integers(client * WORDS // CLIENTS, (client + 1) * WORDS // CLIENTS, size=number)
    ids = [torch.tensor((begin + np.arange(LENGTH)) % WORDS) for begin in begins]
    return [{"input_ids": one, "attention_mask": torch.ones_like(one), "labels": one} for one in ids]


def language_model() -> torch.nn.Module:
    """Return a GPT-2 with frozen weights and trained adapters."""
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        initializer_range=0.3,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
    return get_peft_model(GPT2LMHeadModel(config), lora)


def fit(net: torch.nn.Module, rows: list[dict[str, torch.Tensor]]) -> None:
    """Train by the Trainer as it is. Nothing here knows of fedpd."""
    arguments = TrainingArguments(
        output_dir="runs",
        max_steps=15,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(net, arguments, train_dataset=rows)
    trainer.remove_callback(PrinterCallback)
    trainer.train()


@torch.no_grad()
def loss(net: torch.nn.Module, rows: list[dict[str, torch.Tensor]]) -> float:
    net.eval()
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return float(net(**batch).loss)


def main() -> None:
    logging.set_verbosity_error()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more threads do not pay for a model this small
    net, clients = language_model(), [texts(client, 60) for client in range(CLIENTS)]
    method = algorithms.fedpd(eta=20.0, oracle=oracles.own_loop(), start="server")
    start = fedpd.torch.parameters_of(net)
    total = sum(parameter.numel() for parameter in net.parameters())
    print(f"{sum(part.size for part in start.values())} of {total} parameters travel")
    print(f"start    mean loss {np.mean([loss(net, rows) for rows in clients]):.3f}")
    server, agents = fedpd.torch.Server(method, start), [fedpd.torch.Agent() for _ in clients]
    for r in range(ROUNDS):
        messages = []
        for agent, rows in zip(agents, clients, strict=True):
            fedpd.torch.load(net, server.model)
            with fedpd.torch.local(method, net, agent) as step:  # the one line
                fit(net, rows)
            messages.append(step.message)
        server.update(messages)
        fedpd.torch.load(net, server.model)
        print(f"round {r + 1}  mean loss {np.mean([loss(net, rows) for rows in clients]):.3f}", flush=True)


if __name__ == "__main__":
    main()
