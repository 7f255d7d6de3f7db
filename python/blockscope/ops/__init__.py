"""The attention operators of Blockscope for PyTorch: ``torch.ops.blockscope`` with types, defaults and names.

    from blockscope import ops

    a = ops.split_attention(q, k_ext, v_ext, k_in, v_in)      # a.out, a.external, a.lse_external, a.internal, ...

Importing this module imports torch and loads the compiled operators. If one of the two is missing, or torch has a
different version from the one of the build, :class:`blockscope.OperatorsUnavailable` (an ImportError) says what to do.
``BLOCKSCOPE_KERNELS`` can name a different library, such as build/release/lib/libblockscope_kernels.so.

Dimensions: S sequences, H query heads, K KV heads (H = K * G; query head h reads KV head h // G), T query tokens, N
room for external keys, D head_dim (up to 256 on a GPU). Tensors q, k, v share one dtype (float32, float16 or bfloat16)
and one device (CPU or CUDA). They may be views with a contiguous last dimension. Sums are float32. An ``lse`` is
float32 and the natural logarithm of sum(exp(q . k * scale)).

Common arguments. scale: None is D ** -0.5. ext_len: how many external keys of each sequence count, [S] int64 on the
CPU, or one number for all sequences, or None for all N keys. Keys after them are not read. Without keys, a side is 0
and its lse is -inf.

All operators work under torch.compile, torch.export and FakeTensor. Those with gradients say so; gradients of gradients
are errors. Do not write to a cache that is saved for the backward pass, not even after ext_len: autograd sees one
tensor and raises an error.
"""

from __future__ import annotations

from . import _library

#: The loaded library; None if torch.ops.load_library had loaded it before.
library: str | None = _library.load()

# After the library, because its messages say what is missing.
from . import _attention, _rows, _selection  # noqa: E402
from ._attention import *  # noqa: E402, F403
from ._rows import *  # noqa: E402, F403
from ._selection import *  # noqa: E402, F403

__all__ = ["library"]
__all__ += _attention.__all__
__all__ += _rows.__all__
__all__ += _selection.__all__
