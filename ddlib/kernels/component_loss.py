"""Loss of some positions, whose process and rows of the output layer are those of a component."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64
from torch import Tensor

from ddlib.kernels.fused import (
    FlatBatch,
    Gradients,
    Layer,
    LossPart,
    Observer,
    Work,
    add,
    columns_of,
)
from ddlib.parameterization.logits import token_columns
from ddlib.processes import ForwardProcess


@dataclass(frozen=True)
class ComponentLoss(LossPart):
    """Loss of a component of the process, by its own plan: some rows of the batch, and the rows of
    its tokens in the output layer.
    """

    process: ForwardProcess
    """The process of all rows."""
    number: int
    """Number of the component."""
    index: Int64[Tensor, "n"]
    """Indices of its rows."""
    rows: FlatBatch
    """Its rows, with states of its own process."""
    parts: Sequence[LossPart]
    """Parts of its plan, by indices among its rows, and by its tokens."""

    def read(self) -> None:
        for part in self.parts:
            part.read()

    def observed(self, observe: Observer | None) -> "ComponentLoss":
        if observe is None:
            return replace(self, parts=[part.observed(None) for part in self.parts])
        every = slice(self.process.components[self.number].process.vocab_size)

        def of_all(columns: Tensor | slice | None, index: Tensor, probs: Tensor) -> None:
            observe(every if columns is None else columns, self.index[index], probs)

        return replace(self, parts=[part.observed(of_all) for part in self.parts])


@add.register
def _add_component(component: ComponentLoss, work: Work) -> None:
    index = component.index
    columns = token_columns(component.process, len(work.layer.weight))[component.number]
    layer = Layer(
        work.layer.hidden[index], *columns_of(work.layer.weight, work.layer.bias, columns)
    )
    gradients = None
    if work.gradients is not None:
        by_bias = work.gradients.bias
        # views of the gradients of the layer, to which the parts add
        gradients = Gradients(
            torch.zeros_like(layer.hidden),
            work.gradients.weight[columns],
            None if by_bias is None else by_bias[columns],
        )
    scale = None if work.scale is None else work.scale[index]
    values = work.values.new_zeros(len(index))
    own = Work(layer, component.rows, scale, work.budget, values, gradients)
    for part in component.parts:
        add(part, own)
    work.values[index] = values
    if work.gradients is not None and gradients is not None:
        work.gradients.hidden[index] = gradients.hidden
