"""Gradients of custom operations that are custom operations themselves."""

from typing import Any

from torch import Tensor
from torch.library import CustomOpDef


def register_backward(
    forward: CustomOpDef,
    backward: CustomOpDef,
    *,
    gradients: int,
    differentiable: int = 1,
    save_outputs: bool = True,
    tell_needed: bool = False,
) -> None:
    """Make one operation the backward pass of another.

    `forward(*tensors, *options)` returns values, or values and other outputs.
    `backward(*grads, *tensors, *outputs, *options)`, given the gradients of the first outputs,
    returns contiguous gradients of the first tensors.

    Args:
        forward: Operation to differentiate.
        backward: Operation that computes its gradients.
        gradients: Number of gradients that `backward` returns.
        differentiable: Number of outputs that have a gradient.
        save_outputs: Pass the outputs of `forward` to `backward`.
        tell_needed: Pass to `backward` at last a list that tells which of its gradients are needed.
            Only here that is known: under torch.func.vmap a tensor does not tell.
    """

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.options, ctx.num_inputs = inputs[len(tensors) :], len(inputs)
        ctx.mark_non_differentiable(*outputs[differentiable:])
        ctx.save_for_backward(*tensors, *(outputs if save_outputs else ()))

    def differentiate(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        needed = (list(ctx.needs_input_grad[:gradients]),) if tell_needed else ()
        found = backward(*grads[:differentiable], *ctx.saved_tensors, *ctx.options, *needed)
        return *found, *(ctx.num_inputs - gradients) * (None,)

    def fake(*tensors: Any) -> tuple[Tensor, ...]:
        inputs = tensors[differentiable : differentiable + gradients]
        return tuple(x.new_empty(x.shape) for x in inputs)

    def refuse(ctx: Any, *_: Any) -> None:
        raise RuntimeError(f"{forward._qualname} has no gradient of its gradient")

    forward.register_autograd(differentiate, setup_context=setup)
    backward.register_autograd(refuse)
    backward.register_fake(fake)
