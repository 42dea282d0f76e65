"""Records what LossWarmupWrapper of the package imbalanced-losses (0.6.0, with torch 2.15) does: record_warm_up.py > warm_up.txt

"schedule" lines: options as key=value, then for each call of a hook its kind (0: epoch, 1: step) and number, and behind it
main_weight, temperature, in_warmup, in_blend and how often the queue was reset.
"""
import random
import warnings

import torch
from imbalanced_losses import LossWarmupWrapper, SmoothAPLoss

random.seed(22)
torch.manual_seed(22)


class Main(SmoothAPLoss):
    resets = 0

    def reset_queue(self):
        self.resets += 1
        super().reset_queue()


def random_options(counts_steps):
    options = {"temp_start": random.choice((0.05, 0.5)), "temp_end": random.choice((0.005, 0.05, 0.9)),
               "temp_decay_steps": random.randint(1, 40), "final_main_weight": random.choice((1.0, 1.0, 0.75, 0.1)),
               "reset_queue_each_epoch": random.random() < 0.3}
    if counts_steps:
        options["warmup_steps"] = random.choice((0, 1, 5, 12))
        if random.random() < 0.7:
            options["blend_steps"] = random.choice((0, 1, 4, 9))
    else:
        options["warmup_epochs"] = random.choice((0, 1, 2, 3))
        options["blend_epochs"] = random.choice((0, 0, 1, 3))
    return options


def words(options):
    return " ".join(f"{name}={int(value) if isinstance(value, bool) else value}" for name, value in options.items())


def schedule(counts_steps):
    options = random_options(counts_steps)
    temperature = random.choice((0.01, 0.2))
    main = Main(num_classes=1, queue_size=4, temperature=temperature)
    loss = LossWarmupWrapper(torch.nn.Identity(), main, **options)
    fields = []

    def call(kind, number):
        main.resets = 0
        (loss.on_train_batch_start if kind else loss.on_train_epoch_start)(number)
        fields.append(f"{kind} {number} {loss.main_weight!r} {loss.current_temperature!r} {loss.in_warmup:d} {loss.in_blend:d} "
                      f"{main.resets}")

    epoch, step = random.choice((0, 0, 0, 2)), random.choice((0, 0, 0, 7))
    for _ in range(random.randint(2, 5)):
        if not counts_steps or random.random() < 0.7:
            call(0, epoch)
        for _ in range(random.randint(0, 4)):
            call(1, step)
            step += random.choice((1, 1, 1, 3))
        epoch += 1
        if random.random() < 0.05:  # Started again from an older state.
            epoch, step = max(0, epoch - 2), max(0, step - 6)
    print(f"schedule temperature={temperature} {words(options)};{' '.join(fields)}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for _ in range(30):
        schedule(counts_steps=False)
        schedule(counts_steps=True)
