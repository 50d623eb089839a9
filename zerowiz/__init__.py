"""From a training script, a model and these GPUs to a running DeepSpeed job."""

__version__ = "0.1.0"
