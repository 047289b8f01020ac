"""A site: NVFlare's client API around a plain PyTorch loop, with one line of fedpd. `job.py` runs it."""

import nvflare.client as flare
import torch
from digits import Net, samples_of, test_accuracy
from torch import nn

import fedpd.torch
from fedpd import algorithms, oracles


def my_train(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Train as you always do. Nothing here knows of fedpd."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()


def main() -> None:
    flare.init()
    x, y = samples_of(int(flare.get_site_name().removeprefix("site-")) - 1)
    net, agent = Net(), fedpd.torch.Agent()  # the agent keeps the dual of this site
    method = algorithms.fedpd(eta=5.0, oracle=oracles.own_loop(), start="server")
    while flare.is_running():
        received = flare.receive()
        net.load_state_dict({name: torch.as_tensor(part) for name, part in received.params.items()})
        accuracy = test_accuracy(net)
        with fedpd.torch.local(method, net, agent):  # the one line
            my_train(net, x, y)
        flare.send(flare.FLModel(params=net.state_dict(), metrics={"accuracy": accuracy}))


if __name__ == "__main__":
    main()
