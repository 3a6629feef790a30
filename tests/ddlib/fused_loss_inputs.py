"""Batches of hidden states under an output layer, for the tests of the fused losses and of their
kernels.
"""

import torch

import ddlib as dd

F64 = torch.float64
NESTED = [[0, 0, 1, 1, 2, 3, 3, 4], [0, 1, 1, 0, 2], [0, 0, 1]]


def batch(
    process,
    tree=None,
    seed=0,
    *,
    rows=12,
    length=5,
    dim=7,
    dtype=F64,
    scale=1.0,
    extra=0,
    own=False,
):
    """Hidden states, matrix, bias; tokens, states, times.

    The output layer has a row for every state of the tree but its root, without a tree for every
    token; and ``extra``. Every position has a time of its ``own``, or each text one.
    """
    generator = torch.Generator().manual_seed(seed)
    columns = (process.vocab_size if tree is None else tree.num_states - 1) + extra
    sizes = (rows, length, dim), (columns, dim), (columns,)
    layer = [
        (torch.randn(size, generator=generator, dtype=F64) * scale).to(dtype).requires_grad_()
        for size in sizes
    ]
    x = torch.randint(process.vocab_size, (rows, length), generator=generator)
    t = torch.rand((rows, length) if own else (rows,), generator=generator, dtype=F64)
    return layer, (x, process.sample(x, t, generator), t)


def close(ours, theirs, tolerance=1e-10):
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() <= tolerance * (1 + other.abs().max())


def logits_of(layer):
    """Logits by hidden states, matrix and bias."""
    return torch.nn.functional.linear(*layer)


def agree(process, layer, noisy, tolerance=1e-10, chunk=None, **options):
    """Compare the fused loss and its gradients with those of the loss on materialised logits."""
    ours = dd.training_loss(
        process, dd.Hidden(*layer[:2], layer[2], chunk=chunk), *noisy, **options
    )
    theirs = dd.training_loss(process, logits_of(layer), *noisy, **options)
    close([ours], [theirs], tolerance)
    close(
        torch.autograd.grad(ours.mean(), layer),
        torch.autograd.grad(theirs.mean(), layer),
        tolerance,
    )


def exact(process, layer, noisy, tree=None, rows=None, **options):
    """The loss of each token on logits in float64, and the gradients of its mean.

    With a tree, those of child logits.
    """
    wide = [p.detach().to(F64).requires_grad_() for p in layer]
    logits = logits_of(wide) if rows is None else logits_of(wide)[..., rows]
    options |= {} if tree is None else {"parameterization": dd.Children(tree)}
    values = dd.training_loss(process, logits, *noisy, **options, reduction="none")
    return values.detach(), torch.autograd.grad(values.mean(), wide)


def agree_with_float64(
    process, layer, noisy, tree=None, rows=None, tolerance=2e-5, chunk=None, **options
):
    """Values without gradients (the first kernel) and in training (the second one), and all
    gradients.
    """
    values, gradients = exact(process, layer, noisy, tree, rows, **options)
    given = dict(x=noisy[0], z=noisy[1], t=noisy[2]) | options
    given |= {} if tree is None else {"parameterization": dd.Children(tree, rows=rows)}
    hidden = dd.Hidden(*layer, chunk=chunk)
    with torch.no_grad():
        ours = dd.training_loss(process, hidden, **given, reduction="none")
    loss, per_token = dd.summed_loss(process, hidden, **given, scale=1 / noisy[0].numel())
    close([ours, per_token, loss], [values, values, values.mean()], tolerance)
    found = torch.autograd.grad(loss, layer)
    assert all(one.dtype == p.dtype for one, p in zip(found, layer, strict=True))
    close(found, gradients, tolerance)


def agree_on_mean(ours, theirs, layer):
    """Compare losses of tokens with their mean, on the scale of the largest: huge weights may
    cancel in the mean.
    """
    close([ours], [theirs.mean()])
    scale = 1 + float(theirs.detach().abs().max())
    slopes = (torch.autograd.grad(loss, layer) for loss in (ours, theirs.mean()))
    for one, other in zip(*slopes, strict=True):
        assert (one - other).abs().max() <= 1e-10 * scale


def agree_under_autocast(process, layer, noisy, **options):
    """Matrix products in bfloat16, the loss and the gradients in float32."""
    options["weighting"] = dd.weightings.Clip(5.0)
    layer = [part.detach().float().requires_grad_() for part in layer]
    exact = dd.training_loss(process, logits_of(layer), *noisy, **options)
    with torch.autocast("cpu", torch.bfloat16):
        ours = dd.training_loss(process, dd.Hidden(*layer[:2], layer[2]), *noisy, **options)
    assert ours.dtype == torch.float32 and abs(ours - exact) < 0.05 * exact
    gradients = torch.autograd.grad(ours, layer)
    assert all(g.dtype == torch.float32 for g in gradients)
    close(gradients, torch.autograd.grad(exact, layer), 0.03)


def agree_when_compiled(step, layer, tolerance=1e-10, tolerance_of_slopes=1e-10):
    """One graph break at most, and the same values and gradients."""
    assert torch._dynamo.explain(step)(*layer).graph_break_count <= 1
    compiled = torch.compile(step, backend="aot_eager")
    close([compiled(*layer)], [step(*layer)], tolerance)
    slopes = (torch.autograd.grad(one(*layer), layer) for one in (compiled, step))
    close(*slopes, tolerance_of_slopes)
