"""Gathers with gradients, and reductions of metrics, over any group of torch.distributed. Their names are those of
imbalanced-losses, Lightning and torchmetrics; docs/coming-from.md has a table of all forms.

Every function is collective, and raises RuntimeError before init_process_group()."""
import functools
import math
import operator

import torch
import torch.distributed as dist

__all__ = ["all_gather_with_grad", "all_gather_no_grad", "gather_all_tensors", "sync_ddp", "global_mean",
           "reduce_losses", "LossAccumulator"]

GRAD_SCALES = ("sum", "mean", "local_slice")
"""The values of `grad_scale`: all_gather_with_grad()."""


def _size(function, group):
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(f"tutti: torch.distributed is not initialized; call init_process_group() on every rank "
                           f"before {function}()")
    return dist.get_world_size(group)


def is_tutti(group):
    """Whether the backend of every device is tutti, also as in "cpu:tutti,cuda:tutti"."""
    return all(each.rpartition(":")[2] == "tutti" for each in str(dist.get_backend(group)).split(","))


def name_of(group):
    """The name by which the library's operators find the group; of None the name of the default group."""
    return (group or dist.group.WORLD).group_name


def device_of(group):
    """The device of a tensor that the group can reduce."""
    return dist.distributed_c10d._get_object_coll_device(group)


def exchange(numbers, device, group=None):
    """The integers of every rank, as many on each, as a list for each rank."""
    mine = torch.tensor(numbers, dtype=torch.int64, device=device)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, mine, group=group)
    return torch.stack(every).tolist()


@torch.compiler.disable
def gather_rows(local, group=None, lengths=None):
    """The rows of every rank, [sum n_r, ...], and their numbers, which other backends than tutti exchange unless
    `lengths` has them. A tensor without dimensions is one row."""
    if is_tutti(group):
        return torch.ops.tutti.all_gather_rows(local, name_of(group))
    local = torch.atleast_1d(local)
    lengths = lengths or [rows for rows, in exchange([len(local)], local.device, group)]
    padded = torch.cat([local, local.new_zeros((max(lengths) - len(local), *local.shape[1:]))])
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[:rows] for part, rows in zip(parts, lengths)]), lengths


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, local, _, grad_scale, group):
        whole, ctx.lengths = gather_rows(local, group)
        ctx.grad_scale, ctx.group = grad_scale, group
        return whole

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        rank = dist.get_rank(ctx.group)
        if ctx.grad_scale == "local_slice":
            mine = grad.split(ctx.lengths)[rank]
        elif is_tutti(ctx.group):
            mine = torch.ops.tutti.reduce_scatter_rows(grad, ctx.lengths, name_of(ctx.group))
        else:  # Not every backend has a reduce_scatter of uneven parts.
            ranks, rows = len(ctx.lengths), ctx.lengths[rank]
            parts = grad.new_empty((ranks * rows, *grad.shape[1:]))
            dist.all_to_all_single(parts, grad.contiguous(), [rows] * ranks, ctx.lengths, group=ctx.group)
            mine = parts.view(ranks, rows, *grad.shape[1:]).sum(0)
        return mine / len(ctx.lengths) if ctx.grad_scale == "mean" else mine, None, None, None


def all_gather_with_grad(tensor, group=None, grad_scale="sum"):
    """[n_r, ...] -> [sum n_r, ...] in the order of the ranks; row counts may differ. With one rank the tensor itself.

    grad_scale: the gradient of this rank's rows. "sum": the sum over ranks of their gradients there. Under DDP, which
    averages, a loss that every rank computes from all rows then trains as in one process. "mean": that, divided by
    the number of ranks. "local_slice": this rank's own part, which the backward does not send, as in imbalanced-losses;
    of such a loss it is the mean. docs/gradients.md has other losses. With "sum" and "mean" every rank has to call
    backward(); the result requires grad on every rank, also on one whose tensor does not."""
    if grad_scale not in GRAD_SCALES:
        raise ValueError(f"tutti: grad_scale is {grad_scale!r}; it is one of {', '.join(GRAD_SCALES)}")
    if _size("all_gather_with_grad", group) == 1:
        return tensor
    return _Gather.apply(tensor, torch.empty(0, requires_grad=True), grad_scale, group)


def all_gather_no_grad(tensor, group=None):
    """all_gather_with_grad() without a gradient, of any dtype that the backend takes."""
    if _size("all_gather_no_grad", group) == 1:
        return tensor
    return gather_rows(tensor.detach(), group)[0]


def _objects(function, mine, group):
    every = [None] * _size(function, group)
    dist.all_gather_object(every, mine, group=group)
    return every


def gather_all_tensors(result, group=None):
    """The tensors of all ranks as a list. Shapes may differ in every dimension; the number of dimensions and the dtype
    may not. This rank's own entry is `result`, with its graph; the others have no gradient."""
    every = _objects("gather_all_tensors", (tuple(result.shape), result.dtype), group)
    for rank, (shape, dtype) in enumerate(every):
        if (len(shape), dtype) != (len(every[0][0]), every[0][1]):
            raise ValueError(f"tutti: gather_all_tensors(): rank 0 has {every[0][1]} {list(every[0][0])}; rank {rank} "
                             f"has {dtype} {list(shape)}; give all ranks one dtype and one number of dimensions")
    lengths = [math.prod(shape) for shape, _ in every]
    parts = gather_rows(result.detach().reshape(-1), group, lengths)[0].split(lengths)
    parts = [part.view(shape) for part, (shape, _) in zip(parts, every)]
    parts[dist.get_rank(group)] = result
    return parts


_OPERATIONS = {"sum": "SUM", "mean": "AVG", "avg": "AVG", "max": "MAX", "min": "MIN", "prod": "PRODUCT",
               "product": "PRODUCT"}


def sync_ddp(result, group=None, reduce_op=None):
    """Reduces a tensor over the ranks in place and returns it; of a number it returns a number. reduce_op: a ReduceOp
    of torch, or in any case "sum" (the default), "mean", "avg", "max", "min", "prod", "product". A mean of integers is
    the sum divided by the number of ranks, truncated toward zero."""
    size = _size("sync_ddp", group)
    if reduce_op is None or isinstance(reduce_op, str):
        name = (reduce_op or "sum").lower()
        if name not in _OPERATIONS:
            raise ValueError(f"tutti: reduce_op is {reduce_op!r}; known are {', '.join(_OPERATIONS)}")
        reduce_op = getattr(dist.ReduceOp, _OPERATIONS[name])
    if isinstance(result, torch.Tensor):
        data = result.detach()
    else:
        data = torch.tensor(result, dtype=torch.int64 if isinstance(result, int) else torch.float64,
                            device=device_of(group))
    divides = reduce_op == dist.ReduceOp.AVG and not is_tutti(group)  # Which not all have.
    dist.all_reduce(data, op=dist.ReduceOp.SUM if divides else reduce_op, group=group)
    if divides:
        is_real = data.is_floating_point() or data.is_complex()
        torch.div(data, size, rounding_mode=None if is_real else "trunc", out=data)
    return result if isinstance(result, torch.Tensor) else data.item()


def _mean(total, count):
    return total / count if count else math.nan


def global_mean(total, count, group=None):
    """The sum over ranks of `total` / the sum of `count`: the mean over all rows, however they are split; NaN without
    rows. The mean of the ranks' means would be wrong."""
    _size("global_mean", group)
    both = torch.tensor([float(total), float(count)], dtype=torch.float64, device=device_of(group))
    dist.all_reduce(both, group=group)
    return _mean(*both.tolist())


def reduce_losses(losses, group=None):
    """The global mean of each loss (name, sum, count), as a list in the given order; NaN without rows. The same bits on
    every rank. Raises ValueError on every rank if the names or their order differ."""
    every = _objects("reduce_losses", [(name, float(total), float(count)) for name, total, count in losses], group)
    names = [[name for name, *_ in theirs] for theirs in every]
    for rank, theirs in enumerate(names):
        if theirs != names[0]:
            raise ValueError(f"tutti: reduce_losses(): rank 0 has {names[0]}; rank {rank} has {theirs}; every rank has "
                             f"to pass the same losses")
    return [_mean(*(functools.reduce(operator.add, column) for column in list(zip(*ranks))[1:]))
            for ranks in zip(*every)]


class LossAccumulator:
    """The loss of a training step with gradient accumulation: add() every micro-batch, reduce() once per step. Ranks
    may have different numbers of micro-batches."""

    def __init__(self):
        self._sums = {}  # By name: the sum, the rows, and whether it is expected.

    def add(self, name, mean, rows):
        """Adds the mean over `rows` rows of a micro-batch. Of 0 rows it is not read."""
        if rows < 0:
            raise ValueError(f"tutti: loss {name!r} has {rows} rows; the number must be 0 or more")
        total, count, expected = self._sums.get(name, (0.0, 0, False))
        if rows:
            total, count = total + float(mean) * rows, count + rows
        self._sums[name] = total, count, expected

    def expect(self, name):
        """Declares a loss for which this rank may have no micro-batch. Once per name."""
        self._sums[name] = (*self._sums.get(name, (0.0, 0))[:2], True)

    def reduce(self, group=None):
        """The means over all rows as a dict sorted by name, from reduce_losses(). Then expected losses have no rows
        and the others are gone; after an error nothing has changed."""
        names = sorted(self._sums)
        means = reduce_losses([(name, *self._sums[name][:2]) for name in names], group)
        self._sums = {name: (0.0, 0, True) for name in names if self._sums[name][2]}
        return dict(zip(names, means))
