"""A loss that is blended into another one."""
import inspect

from torch import nn

from tutti._loss import warn


class LossWarmupWrapper(nn.Module):
    """Runs `warmup_loss`, then blends it into `main_loss`, whose temperature falls in the main phase from temp_start to
    temp_end by the same factor in each of temp_decay_steps steps. Phases are counted in epochs, or in steps if
    warmup_steps is set. final_main_weight: the weight of main_loss after the blend. When the main phase begins, and
    with reset_queue_each_epoch at each of its epochs, the queue of main_loss is emptied.

    Call on_train_epoch_start(epoch) and, in both modes, on_train_batch_start(step of the whole training)."""

    def __init__(self, warmup_loss, main_loss, warmup_epochs=0, temp_start=0.05, temp_end=0.005,
                 temp_decay_steps=10_000, *, blend_epochs=0, warmup_steps=None, blend_steps=None,
                 final_main_weight=1.0, reset_queue_each_epoch=False, gather_distributed=None):
        super().__init__()
        for kind, epochs, steps in (("warmup", warmup_epochs, warmup_steps), ("blend", blend_epochs, blend_steps)):
            if steps is not None and epochs != 0:
                raise ValueError(f"{kind}_epochs is {epochs} and {kind}_steps is {steps}; pass one of them")
            for unit, value in (("epochs", epochs), ("steps", steps)):
                if value is not None and value < 0:
                    raise ValueError(f"{kind}_{unit} must be >= 0, got {value}")
        if blend_steps is not None and warmup_steps is None:
            raise ValueError("blend_steps requires warmup_steps; with warmup_epochs pass blend_epochs")
        if not 0 < final_main_weight <= 1:
            raise ValueError(f"final_main_weight must be in (0, 1], got {final_main_weight}")
        if temp_start <= 0 or temp_end <= 0:
            raise ValueError(f"temp_start and temp_end must be positive, got {temp_start} and {temp_end}")
        if temp_decay_steps <= 0:
            raise ValueError(f"temp_decay_steps must be positive, got {temp_decay_steps}")
        self.warmup_loss, self.main_loss = warmup_loss, main_loss
        self.warmup_epochs, self.warmup_steps = warmup_epochs, warmup_steps or 0
        self.blend_epochs, self.blend_steps = blend_epochs, blend_steps or 0
        self.temp_start, self.temp_end, self.temp_decay_steps = float(temp_start), float(temp_end), temp_decay_steps
        self.final_main_weight, self.reset_queue_each_epoch = float(final_main_weight), reset_queue_each_epoch
        self._step_mode = warmup_steps is not None
        if gather_distributed is not None and hasattr(main_loss, "gather_distributed"):
            main_loss.gather_distributed = gather_distributed
        self._has_temperature = hasattr(main_loss, "temperature")
        self._has_reset_queue = hasattr(main_loss, "reset_queue")
        if not self._has_temperature:
            warn(f"{type(main_loss).__name__} has no temperature, so none is scheduled.")
        if reset_queue_each_epoch and not self._has_reset_queue:
            warn(f"{type(main_loss).__name__} has no reset_queue(), so reset_queue_each_epoch has no effect.")
        accepted = inspect.signature(warmup_loss.forward).parameters if hasattr(warmup_loss, "forward") else {}
        self._warmup_accepts_sample_weight = any(
            p.kind is p.VAR_KEYWORD or (name == "sample_weight" and p.kind is not p.VAR_POSITIONAL)
            for name, p in accepted.items())
        self._epoch = self._global_step = 0
        self._switch_step = None  # -1: at the next step.
        self._batch_hook_seen = self._no_batch_hook_warned = False
        if self._phase()[1] == 0:
            self._switch_step = 0
            self._set_temperature(self.temp_start)

    def _phase(self):
        """The position, and the ends of the warm-up and of the blend, in the unit of this object."""
        if self._step_mode:
            return self._global_step, self.warmup_steps, self.warmup_steps + self.blend_steps
        return self._epoch, self.warmup_epochs, self.warmup_epochs + self.blend_epochs

    @property
    def in_warmup(self):
        """Whether the loss is warmup_loss alone."""
        now, warm, _ = self._phase()
        return now < warm

    @property
    def in_blend(self):
        """Whether the loss is a mean of both, between the warm-up and the main phase."""
        now, warm, blended = self._phase()
        return warm <= now < blended

    @property
    def main_weight(self):
        """The weight of main_loss; 0 in the warm-up."""
        now, warm, blended = self._phase()
        if now < warm:
            return 0.0
        ramp = (now - warm + 1) / (blended - warm + 1) if now < blended else 1.0
        return ramp * self.final_main_weight

    @property
    def current_temperature(self):
        """The temperature of main_loss; None if it has none."""
        return float(self.main_loss.temperature) if self._has_temperature else None

    def _set_temperature(self, temperature):
        if self._has_temperature:
            self.main_loss.temperature = temperature

    def _reset_queue(self):
        if self._has_reset_queue:
            self.main_loss.reset_queue()

    def on_train_epoch_start(self, epoch):
        """epoch: from 0."""
        self._epoch = epoch
        if self.in_warmup:
            return
        if not self._step_mode and self._switch_step is None:
            self._switch_step = -1
        if self.reset_queue_each_epoch:
            self._reset_queue()

    def on_train_batch_start(self, global_step):
        """global_step: of the whole training, from 0."""
        self._batch_hook_seen = True
        if self._step_mode:
            self._global_step = global_step
            if not self.in_warmup and self._switch_step is None:
                self._switch_step = -1
        if self.in_warmup or self._switch_step is None:
            return
        if self._switch_step == -1:
            self._switch_step = global_step
            self._set_temperature(self.temp_start)
            self._reset_queue()
        else:
            part = min(1.0, (global_step - self._switch_step) / self.temp_decay_steps)
            self._set_temperature(self.temp_start * (self.temp_end / self.temp_start) ** part)

    def get_extra_state(self):
        """The position in the schedule and the temperature, for a checkpoint."""
        return {"epoch": self._epoch, "global_step": self._global_step, "switch_step": self._switch_step,
                "batch_hook_seen": self._batch_hook_seen, "temperature": self.current_temperature}

    def set_extra_state(self, state):
        """Continues where the checkpoint was written; what it lacks stays as it is."""
        for key in ("epoch", "global_step", "switch_step", "batch_hook_seen"):
            setattr(self, f"_{key}", state.get(key, getattr(self, f"_{key}")))
        if state.get("temperature") is not None:
            self._set_temperature(state["temperature"])

    def _load_from_state_dict(self, state_dict, prefix, *args):
        state_dict.setdefault(prefix + "_extra_state", self.get_extra_state())  # Older checkpoints lack it.
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(self, logits, targets, **kwargs):
        """kwargs go to main_loss; warmup_loss gets sample_weight alone, if it takes it. Returns what the loss returns;
        of a tuple of main_loss only the first element, the loss, is blended."""
        first = kwargs if self._warmup_accepts_sample_weight else {}
        first = {name: value for name, value in first.items() if name == "sample_weight"}
        if self.in_warmup:
            return self.warmup_loss(logits, targets, **first)
        if self._has_temperature and not (self._batch_hook_seen or self._no_batch_hook_warned):
            self._no_batch_hook_warned = True
            warn(f"{type(self).__name__}: on_train_batch_start() was not called, so the temperature does not fall. "
                  "(Shown once per instance.)")
        weight = self.main_weight
        if weight >= 1:
            return self.main_loss(logits, targets, **kwargs)
        warm = self.warmup_loss(logits, targets, **first)
        warm = warm[0] if isinstance(warm, tuple) else warm
        main = self.main_loss(logits, targets, **kwargs)
        if isinstance(main, tuple):
            return ((1 - weight) * warm + weight * main[0], *main[1:])
        return (1 - weight) * warm + weight * main
