"""Gathers with gradients, and reductions of metrics, over any group of torch.distributed."""
import torch
import torch.distributed as dist


def _world(group):
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def _lengths(tensor, group):
    """The number of rows of every rank."""
    mine = torch.tensor([tensor.shape[0]], dtype=torch.int64, device=tensor.device)
    every = [torch.empty_like(mine) for _ in range(_world(group))]
    dist.all_gather(every, mine, group=group)
    return [int(rows) for rows in every]


def gather_parts(local, lengths, group=None):
    """The rows [n_r, ...] of every rank as a list, where `lengths` is every rank's number of rows."""
    longest = max(lengths)
    even = dist.get_backend(group) == "tutti" or min(lengths) == longest
    sent = local.contiguous()
    if not even:  # Other backends want equal lengths.
        sent = torch.cat([local, local.new_zeros((longest - local.shape[0], *local.shape[1:]))])
    parts = [local.new_empty((rows if even else longest, *local.shape[1:])) for rows in lengths]
    dist.all_gather(parts, sent, group=group)
    return [part[:rows] for part, rows in zip(parts, lengths)]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, local, lengths, scale, group):
        ctx.lengths, ctx.scale, ctx.group = lengths, scale, group
        return torch.cat(gather_parts(local, lengths, group))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        total = grad.contiguous()
        if total.data_ptr() == grad.data_ptr():
            total = total.clone()
        dist.all_reduce(total, group=ctx.group)
        start = sum(ctx.lengths[:dist.get_rank(ctx.group)])
        mine = total[start:start + ctx.lengths[dist.get_rank(ctx.group)]]
        return mine * ctx.scale, None, None, None


def all_gather_with_grad(tensor, group=None, scale=1.0):
    """[n_r, ...] -> [sum n_r, ...] in the order of the ranks; row counts may differ. The gradient of a row is the sum
    over ranks of its gradients there, times `scale`: 1 for a loss that is summed over ranks, 1 / world size under DDP
    with a loss that every rank computes from all rows, since DDP averages. Every rank has to call backward()."""
    if _world(group) == 1:
        return tensor
    return _Gather.apply(tensor, _lengths(tensor, group), scale, group)


def all_gather_no_grad(tensor, group=None):
    """all_gather_with_grad() without a gradient."""
    with torch.no_grad():
        return all_gather_with_grad(tensor.detach(), group)


_OPERATIONS = {"sum": dist.ReduceOp.SUM, "mean": None, "avg": None, None: dist.ReduceOp.SUM,
               "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX, "product": dist.ReduceOp.PRODUCT}


def sync_ddp(value, group=None, reduce_op="mean"):
    """The reduction of `value` (a tensor or a number) over the ranks: sum, mean, min, max or product. A mean of
    integers is a float. The argument stays as it is."""
    name = reduce_op.lower() if isinstance(reduce_op, str) else reduce_op
    if name not in _OPERATIONS:
        raise ValueError(f"tutti: reduce_op is {reduce_op!r}; it is one of {', '.join(k for k in _OPERATIONS if k)}")
    out = value.detach().clone() if isinstance(value, torch.Tensor) else torch.tensor(value)
    mean = _OPERATIONS[name] is None
    if mean and not (out.is_floating_point() or out.is_complex()):
        out = out.to(torch.get_default_dtype())
    if _world(group) == 1:
        return out
    dist.all_reduce(out, op=dist.ReduceOp.SUM if mean else _OPERATIONS[name], group=group)
    return out / _world(group) if mean else out


def gather_all_tensors(result, group=None):
    """The tensors of all ranks as a list. Shapes may differ in every dimension; their number of dimensions may not."""
    if _world(group) == 1:
        return [result]
    mine = torch.tensor(result.shape, dtype=torch.int64, device=result.device)
    shapes = [torch.empty_like(mine) for _ in range(_world(group))]
    dist.all_gather(shapes, mine, group=group)
    parts = [result.new_empty(shape.tolist()) for shape in shapes]
    dist.all_gather(parts, result.contiguous(), group=group)
    return parts
