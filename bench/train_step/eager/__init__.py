"""Every mixer of halflife in plain PyTorch, in the fastest eager form: attention in chunks, vectorised over the
chunks; constant masks that are made once; sums over tokens as products with triangular matrices. Options have
halflife's defaults, and parameters its names.

Shapes: B batch, T seq_len, H heads, K head_dim of q and k, V head_dim of v, C chunk, N chunks, D
model_dim.
"""

from .convolution import BaseConv, GatedConv, Hyena
from .decay import D2d, Gla, LinearAttention, RetNet, Retention
from .delta import DeltaNet, GatedDeltaNet, Kda
from .focus import Fastformer, Leap
from .pairs import Based, Gau, Rebased, Softmax
from .recurrent import Mamba, Mamba2, Rwkv4

# Each is made from the program's arguments and the number of its layer: MIXERS["gla"](args, layer).
MIXERS = {
    "retention": Retention,
    "gla": Gla,
    "softmax": Softmax,
    "gau": Gau,
    "d2d": D2d,
    "delta_net": DeltaNet,
    "gated_delta_net": GatedDeltaNet,
    "kda": Kda,
    "retnet": RetNet,
    "linear_attention": LinearAttention,
    "base_conv": BaseConv,
    "gated_conv": GatedConv,
    "hyena": Hyena,
    "leap": Leap,
    "fastformer": Fastformer,
    "rwkv4": Rwkv4,
    "mamba": Mamba,
    "mamba2": Mamba2,
    "based": Based,
    "rebased": Rebased,
}
