"""A backward that can be run once: differentiating it again is an error, and not a wrong number."""

import torch

NO_SECOND_DERIVATIVE = (
    "attention: this implementation has no second derivative; its backward cannot be differentiated again. "
    "For double backward use impl='naive'."
)


class Once(torch.autograd.Function):
    """``Once.apply(compute, *tensors)`` is compute(*tensors), whose own gradient is refused.

    A hand-written backward is a constant to autograd unless it says otherwise. Called through this function it stays
    connected to its inputs, so that a second derivative finds this refusal.
    """

    @staticmethod
    def forward(compute, *tensors):
        """compute(*tensors), unchanged."""
        return compute(*tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Nothing is kept."""

    @staticmethod
    def backward(ctx, *_):
        """Refuse."""
        raise RuntimeError(NO_SECOND_DERIVATIVE)
