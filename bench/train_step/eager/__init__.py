"""Every mixer of halflife in plain PyTorch, in its fastest eager form: attention is vectorised over chunks, constant
masks are computed once, and sums over tokens are products with triangular matrices. Options have the same defaults,
and parameters the same names, as in halflife.

Shapes: B batch, T seq_len, H heads, K head_dim of q and k, V head_dim of v, C chunk, N chunks, D
model_dim.
"""

from .convolution import BaseConv, GatedConv, Hyena
from .decay import D2d, Gla, LinearAttention, RetNet, Retention
from .delta import DeltaNet, GatedDeltaNet, Kda
from .focus import Fastformer, Leap
from .pairs import Based, Gau, Rebased, Softmax
from .recurrent import Mamba, Mamba2, Rwkv4

# MIXERS["gla"](args, layer) creates the mixer of a layer. `args` are the arguments of pytorch_step.py.
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
