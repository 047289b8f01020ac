"""FedPD in NVFlare's simulator: its FedAvg is the server, because FedPD's server averages what the sites send.

python job.py
"""

import tempfile
from pathlib import Path

import torch
from digits import SITES, Net, test_accuracy
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

ROUNDS = 20


def main() -> None:
    recipe = FedAvgRecipe(name="fedpd", model=Net(), min_clients=SITES, num_rounds=ROUNDS, train_script="client.py")
    with tempfile.TemporaryDirectory() as folder:
        run = recipe.execute(SimEnv(num_clients=SITES, num_threads=SITES, workspace_root=folder))
        saved = next(Path(run.get_result()).rglob("FL_global_model.pt"))
        net = Net()
        net.load_state_dict(torch.load(saved)["model"])
    print(f"after {ROUNDS} rounds: test accuracy {test_accuracy(net):.3f}")


if __name__ == "__main__":
    main()
