"""Attention for scientific Python on GPUs: FlashAttention for CuPy arrays, checked in float64.

The functions take CuPy arrays (computed by CUDA kernels compiled at run time) or NumPy arrays (the
same algorithm in NumPy). Importing starts neither CuPy nor a CUDA context.
"""

from __future__ import annotations

from cupy_flash.api import attention
from cupy_flash.backward.api import attention_backward, workspace_size
from cupy_flash.backward.vjp import attention_vjp
from cupy_flash.env import configure_logging
from cupy_flash.errors import CompileError, PerformanceWarning
from cupy_flash.explanation import Explanation, explain
from cupy_flash.softmaxes.api import softmax
from cupy_flash.unfused import standard_attention

__version__ = "0.1.0"

configure_logging()

__all__ = [
    "CompileError",
    "Explanation",
    "PerformanceWarning",
    "__version__",
    "attention",
    "attention_backward",
    "attention_vjp",
    "explain",
    "softmax",
    "standard_attention",
    "workspace_size",
]
