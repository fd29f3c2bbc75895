"""A multilayer perceptron in one kernel: all local steps of a client without returning to Python.

Linear layers with ReLU between them.  An image is flattened channel by channel, as in PyTorch.
"""

from fnlkit._kernels.fused.dense import pitch_for
from fnlkit._kernels.fused.input import Frame, input_shape
from fnlkit._kernels.fused.tile import strict
from fnlkit._kernels.fused.training import linear_layers, local_training, prediction

_TOGETHER = 20  # samples of one block in prediction


@strict
def _frame(samples, width):
    _, height, columns, _ = input_shape(samples)
    return Frame(pitch_for(width), 0, columns, 1, height * columns)


@strict
def _forward(theta, front, samples):
    """Do nothing: a perceptron has no layers before the linear layers."""


@strict
def _backward(theta, velocity, front, samples, descent, step, pull):
    """Do nothing, as `_forward`."""


_train, _predict = local_training(_forward, _backward, False), prediction(_forward)


@strict
def fit(theta, velocity, widths, samples, y, order, descent, loss, augment, epoch_loss, epoch_correct):
    """Train a perceptron on one client's samples, in place.

    Parameters
    ----------
    theta, velocity : (P + SPARE,) real
        Weights in state_dict order followed by the weights of a head, and the momentum buffer.  The last SPARE are never used.
    widths : (layers + 1,) int64
        Size of a sample, hidden units of each layer, number of classes.
    samples : Samples
        H W C is the first width.
    y, order, descent, loss, augment, epoch_loss, epoch_correct
        As for LeNet-5.
    """
    linear = linear_layers(widths, 0, order.shape[1], loss.teacher.shape[1], theta.dtype)
    _train(
        theta, velocity, 0, linear.values, _frame(samples, widths[0]), linear, samples, y, order, descent, loss, augment,
        epoch_loss, epoch_correct,
    )  # fmt: skip


@strict
def predict(theta, widths, samples, augment, logits):
    """Write the logits (n, classes) of all samples; `theta` has SPARE numbers after the last weight."""
    linear = linear_layers(widths, 0, _TOGETHER, 0, theta.dtype)
    _predict(theta, 0, linear.values, _frame(samples, widths[0]), linear, _TOGETHER, samples, augment, logits)
