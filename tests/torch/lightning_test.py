"""A run of PyTorch Lightning over the backend "tutti": two ranks train to the parameters of one process, and a metric
of torchmetrics that gathers rows is the same on both.

usage: lightning_test.py [-v]. Skipped without lightning."""
import os
import sys
import tempfile
import unittest
import warnings

import torch

try:
    import lightning as pl
    from lightning.pytorch.strategies import DDPStrategy
    from torchmetrics.classification import BinaryAveragePrecision
except ModuleNotFoundError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

import tutti  # noqa: F401  Registers the backend.

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


def fit(directory, ranks):
    """Trains; rank r writes its parameters and the metric to `directory`/r."""
    strategy = DDPStrategy(process_group_backend="tutti", start_method="fork") if ranks > 1 else "auto"
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


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("lightning", pl.__version__, "torch", torch.__version__, "over", os.environ.get("TUTTI_BACKEND", "auto"))
    unittest.main()
