"""PyTorch Lightning over the backend "tutti": two ranks train to the parameters of one process, a metric of torchmetrics
that gathers rows is the same on both, and Lightning's own gathers, reductions and hooks give their results.

usage: lightning_test.py [-v]. Skipped without lightning."""
import os
import sys
import tempfile
import unittest
import warnings

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as default
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_localSGD
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powerSGD

try:
    import lightning as pl
    from lightning.fabric.plugins.environments import LightningEnvironment
    from lightning.fabric.utilities import distributed as fabric
    from lightning.pytorch.overrides.distributed import _register_ddp_comm_hook as register_ddp_comm_hook
    from lightning.pytorch.strategies import DDPStrategy
    from torchmetrics.classification import BinaryAveragePrecision
except ModuleNotFoundError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

import tutti  # noqa: F401  Registers the backend.
from calls_test import equal, run_ranks

ROWS, COLUMNS = 240, 6


def rows():
    torch.manual_seed(3)
    x = torch.randn(ROWS, COLUMNS)
    return torch.utils.data.TensorDataset(x, (x.sum(1) > 0.5).float())


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear = torch.nn.Linear(COLUMNS, 1)
        self.metric = BinaryAveragePrecision()

    def training_step(self, batch, _):
        logits = self.linear(batch[0])[:, 0]
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch[1])

    def validation_step(self, batch, _):
        self.metric.update(self.linear(batch[0])[:, 0], batch[1].int())

    def on_validation_epoch_end(self):
        self.log("ap", self.metric.compute(), sync_dist=False)
        self.metric.reset()

    def train_dataloader(self):
        """Lightning's own sampler shuffles. The ranks of this one take the rows in turn, so a step has the same rows on
        any number of ranks."""
        ranks = self.trainer.world_size
        sampler = torch.utils.data.DistributedSampler(rows(), ranks, self.trainer.global_rank, shuffle=False)
        return torch.utils.data.DataLoader(rows(), batch_size=24 // ranks, sampler=sampler)

    val_dataloader = train_dataloader

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def fit(directory, ranks, backend="tutti"):
    """Trains; rank r writes its parameters and the metric to `directory`/r."""
    strategy = DDPStrategy(process_group_backend=backend, start_method="fork") if ranks > 1 else "auto"
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", devices=ranks, strategy=strategy, logger=False,
                         enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                         use_distributed_sampler=False)
    model = Model()

    class Record(pl.Callback):
        def on_fit_end(self, trainer, module):
            torch.save((module.state_dict(), trainer.callback_metrics["ap"]), f"{directory}/{trainer.global_rank}")
    trainer.callbacks.append(Record())

    trainer.fit(model)


class Lightning(unittest.TestCase):
    def test_two_ranks_train_as_one_process(self):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            fit(two, 2)
            fit(one, 1)
            state, precision = torch.load(f"{one}/0")
            for rank in range(2):
                got, value = torch.load(f"{two}/{rank}")
                for name, parameter in state.items():
                    torch.testing.assert_close(got[name], parameter, msg=lambda text, name=name: f"{name}: {text}")
                torch.testing.assert_close(value, precision)

    def test_its_own_functions_work_over_tutti(self):
        def body(rank, size):
            store = dist.PrefixStore("of Lightning", dist.distributed_c10d._get_default_store())
            dist.destroy_process_group()
            fabric._init_dist_connection(LightningEnvironment(), "tutti", rank, size, store=store)
            every = [torch.full((2, 3), float(r)) for r in range(size)]
            for sync_grads in (False, True):
                x = every[rank].clone().requires_grad_()
                whole = fabric._all_gather_ddp_if_available(x, sync_grads=sync_grads)
                equal(whole.detach(), torch.stack(every))
                assert whole.requires_grad == sync_grads
            (whole.sum() * (rank + 1)).backward()
            equal(x.grad, torch.full((2, 3), size * (size + 1) / 2))
            for op, expected in (("sum", 3.0), ("mean", 1.5), ("avg", 1.5), (dist.ReduceOp.MAX, 2.0)):
                equal(fabric._sync_ddp_if_available(torch.tensor(rank + 1.0), reduce_op=op), torch.tensor(expected))
            for r, got in enumerate(fabric._gather_all_tensors(torch.full((rank + 1, 2), float(rank)))):
                equal(got, torch.full((r + 1, 2), float(r)))
        run_ranks(2, body)

    def test_its_hooks_work_over_tutti(self):
        def body(rank, size):
            subgroup, _ = dist.new_subgroups(1)
            state = {"process_group": None, "matrix_approximation_rank": 1, "start_powerSGD_iter": 2}
            for name, options in {
                "fp16": {"ddp_comm_hook": default.fp16_compress_hook},
                "PowerSGD": {"ddp_comm_state": powerSGD.PowerSGDState(**state), "ddp_comm_hook": powerSGD.powerSGD_hook},
                "post-local SGD": {"ddp_comm_state": post_localSGD.PostLocalSGDState(
                    process_group=None, subgroup=subgroup, start_localSGD_iter=1_000),
                    "ddp_comm_hook": post_localSGD.post_localSGD_hook},
                "PowerSGD in fp16": {"ddp_comm_state": powerSGD.PowerSGDState(**state), "ddp_comm_hook": powerSGD.powerSGD_hook,
                                     "ddp_comm_wrapper": default.fp16_compress_wrapper},
            }.items():
                torch.manual_seed(1)
                model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 1))
                register_ddp_comm_hook(model=model, **options)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
                x, y = rows()[rank::size]
                losses = []
                for _ in range(20):
                    optimizer.zero_grad()
                    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                assert losses[-1] < 0.7 * losses[0], f"{name}: {losses}"
                weights = torch.cat([p.detach().flatten() for p in model.parameters()])
                both = fabric._all_gather_ddp_if_available(weights)
                equal(both[0], both[1], name)
        run_ranks(2, body)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("lightning", pl.__version__, "torch", torch.__version__, "over", os.environ.get("TUTTI_BACKEND", "auto"))
    unittest.main()
