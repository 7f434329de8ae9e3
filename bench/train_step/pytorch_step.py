"""One training step of a small language model in plain PyTorch on the CPU, what bench/train_step
compares with: eager or, with --compile, torch.compile; fp32 or, with --precision bf16, autocast.

    .venv-compare/bin/python bench/train_step/pytorch_step.py --mixer gla --layers 6 --dim 256

The models are halflife's own (pre-norm blocks, RMSNorm, SwiGLU, untied head) with the mixers
`retention`, `gla` and `softmax`, in the best form that eager PyTorch has for them: attention in
chunks, vectorised over the chunks, constant masks made once, exponents that are never positive,
fused AdamW, gradient clipping. Prints one JSON line with the losses of the --warmup steps and the
median time of the --steps after them. --start gives it halflife's own parameters and batch, as
bench_train_step --save-start writes them.

Shapes: B batch, T seq_len, H heads, K head_dim of q and k, V head_dim of v, C chunk, N chunks, D
model_dim.
"""

import argparse
import json
import math
import resource
import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GATE_RANK = 16
GATE_NORMALISER = 16
ROTARY_BASE = 10000.0


def linear(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=0.02)
    return layer


class RmsNorm(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, eps=1e-6)


class Rotary(nn.Module):
    """Half-split rotary position code over the whole head."""

    def __init__(self, head_dim: int, seq_len: int):
        super().__init__()
        frequency = ROTARY_BASE ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        angle = torch.outer(torch.arange(seq_len).float(), frequency)
        self.register_buffer(
            "cos", torch.cat([angle.cos()] * 2, -1)[None, :, None], persistent=False
        )
        self.register_buffer(
            "sin", torch.cat([angle.sin()] * 2, -1)[None, :, None], persistent=False
        )

    def forward(self, x: Tensor) -> Tensor:  # [B, T, H, K]
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin


def to_chunks(x: Tensor, chunk: int) -> Tensor:
    """[B, T, H, X] -> [B, H, N, C, X]."""
    batch, seq_len, heads, dim = x.shape
    return x.view(batch, seq_len // chunk, chunk, heads, dim).permute(0, 3, 1, 2, 4).contiguous()


def from_chunks(x: Tensor) -> Tensor:
    """[B, H, N, C, X] -> [B, T, H, X]."""
    batch, heads, num_chunks, chunk, dim = x.shape
    return x.permute(0, 2, 3, 1, 4).reshape(batch, num_chunks * chunk, heads, dim)


class GatedOutput(nn.Module):
    """Per-head RMSNorm, gate silu(g), output projection."""

    def __init__(self, dim: int, value_dim: int, heads: int):
        super().__init__()
        self.norm = RmsNorm(value_dim // heads)
        self.gate = linear(dim, value_dim)
        self.out = linear(value_dim, dim)

    def forward(self, o: Tensor, x: Tensor) -> Tensor:  # [B, T, H, V], [B, T, D]
        return self.out(self.norm(o).flatten(-2) * F.silu(self.gate(x)))


class Retention(nn.Module):
    """One constant decay a head, gamma_h = 1 - 2^(-5-h): every decay mask is a constant."""

    def __init__(self, args: argparse.Namespace):
        super().__init__()
        dim, heads, self.heads, self.chunk = args.dim, args.heads, args.heads, args.chunk
        value_dim = int(dim * args.expand_v)
        self.q, self.k, self.v = linear(dim, dim), linear(dim, dim), linear(dim, value_dim)
        self.output = GatedOutput(dim, value_dim, heads)
        self.rotary = Rotary(dim // heads, args.seq_len)
        self.scale = (dim // heads) ** -0.5
        log_decay = torch.log1p(-(2.0 ** (-5 - torch.arange(heads))))
        self.make_masks(log_decay, self.chunk, args.seq_len // self.chunk)

    def make_masks(self, log_decay: Tensor, chunk: int, num_chunks: int) -> None:
        position = torch.arange(chunk)
        distance = position[:, None] - position[None, :]
        intra = torch.exp(log_decay[:, None, None] * distance.clamp(min=0)) * (distance >= 0)
        number = torch.arange(num_chunks)
        between = (number[:, None] - number[None, :] - 1) * chunk
        inter = torch.exp(log_decay[:, None, None] * between.clamp(min=0)) * (between >= 0)
        to_end = torch.exp(log_decay[:, None] * (chunk - 1 - position))
        from_start = torch.exp(log_decay[:, None] * (position + 1))
        self.register_buffer("intra", intra[:, None], persistent=False)  # [H, 1, C, C]
        self.register_buffer("inter", inter, persistent=False)  # [H, N, N]
        self.register_buffer("to_end", to_end[:, None, :, None], persistent=False)  # [H, 1, C, 1]
        self.register_buffer("from_start", from_start[:, None, :, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q = (
            to_chunks(self.rotary(self.q(x).unflatten(-1, (self.heads, -1))), self.chunk)
            * self.scale
        )
        k = to_chunks(self.rotary(self.k(x).unflatten(-1, (self.heads, -1))), self.chunk)
        v = to_chunks(self.v(x).unflatten(-1, (self.heads, -1)), self.chunk)
        added = (k * self.to_end).transpose(-1, -2) @ v  # [B, H, N, K, V]
        state = (self.inter @ added.flatten(-2)).view_as(added)
        o = (q @ k.transpose(-1, -2) * self.intra) @ v + (q * self.from_start) @ state
        return self.output(from_chunks(o), x)


class Gla(nn.Module):
    """A decay for every token and channel. Inside a chunk, pairs of tokens in different sub-chunks
    of C_s tokens meet at the later sub-chunk's start, so both exponents are <= 0; pairs within a
    sub-chunk are formed channel by channel."""

    def __init__(self, args: argparse.Namespace):
        super().__init__()
        dim, heads, self.heads, self.chunk, self.sub = (
            args.dim,
            args.heads,
            args.heads,
            args.chunk,
            args.sub_chunk,
        )
        key_dim = int(dim * args.expand_k)
        self.q, self.k, self.v = linear(dim, key_dim), linear(dim, key_dim), linear(dim, dim)
        self.decay = nn.Sequential(linear(dim, GATE_RANK), linear(GATE_RANK, key_dim, bias=True))
        self.output = GatedOutput(dim, dim, heads)
        self.scale = (key_dim // heads) ** -0.5
        position, sub = torch.arange(self.chunk), self.sub
        start = torch.arange(0, self.chunk, sub)
        # earlier[s, j]: token j lies before sub-chunk s. 0 or -inf, to be added to an exponent.
        earlier = torch.where(position[None, :] < start[:, None], 0.0, -math.inf)
        self.register_buffer("earlier", earlier[:, :, None], persistent=False)  # [S, C, 1]
        causal = torch.where(
            torch.arange(sub)[:, None] >= torch.arange(sub)[None, :], 0.0, -math.inf
        )
        self.register_buffer("causal", causal[:, :, None], persistent=False)  # [Cs, Cs, 1]
        number = torch.arange(args.seq_len // self.chunk)
        before = torch.where(number[:, None] > number[None, :], 0.0, -math.inf)
        self.register_buffer("before", before[:, :, None], persistent=False)  # [N, N, 1]

    def scores(self, q: Tensor, k: Tensor, log_decay: Tensor, total: Tensor) -> Tensor:
        """[B, H, N, C, C] from q, k and the cumulated log decay within the chunk, all [B, H, N, C,
        K]."""
        num_subs = self.chunk // self.sub
        split = (num_subs, self.sub)
        sub_total = total.unflatten(3, split)  # [B, H, N, S, Cs, K]
        at_start = sub_total[..., :1, :] - log_decay.unflatten(3, split)[..., :1, :]
        q_sub, k_sub = q.unflatten(3, split), k.unflatten(3, split)
        q_from_start = q_sub * torch.exp(sub_total - at_start)
        k_to_start = k[:, :, :, None] * torch.exp(at_start - total[:, :, :, None] + self.earlier)
        across = q_from_start @ k_to_start.transpose(-1, -2)  # [B, H, N, S, Cs, C]
        pair = torch.exp(sub_total[..., :, None, :] - sub_total[..., None, :, :] + self.causal)
        within = (q_sub[..., :, None, :] * k_sub[..., None, :, :] * pair).sum(
            -1
        )  # [B, H, N, S, Cs, Cs]
        diagonal = torch.diag_embed(within.permute(0, 1, 2, 4, 5, 3))  # [B, H, N, Cs, Cs, S, S]
        diagonal = diagonal.permute(0, 1, 2, 5, 3, 6, 4).reshape(*across.shape)
        return (across + diagonal).flatten(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        heads, chunk = self.heads, self.chunk
        q = to_chunks(self.q(x).unflatten(-1, (heads, -1)), chunk) * self.scale
        k = to_chunks(self.k(x).unflatten(-1, (heads, -1)), chunk)
        v = to_chunks(self.v(x).unflatten(-1, (heads, -1)), chunk)
        log_decay = to_chunks(
            (F.logsigmoid(self.decay(x)) / GATE_NORMALISER).unflatten(-1, (heads, -1)), chunk
        )
        total = log_decay.cumsum(3)  # [B, H, N, C, K]
        chunk_total = total[:, :, :, -1:]
        added = (k * torch.exp(chunk_total - total)).transpose(-1, -2) @ v  # [B, H, N, K, V]
        # state[n] = sum over m < n of exp(log decay of chunks m+1 .. n-1) added[m], channel by
        # channel
        cumulated = chunk_total.squeeze(3).cumsum(2)  # [B, H, N, K]
        start = cumulated - chunk_total.squeeze(3)
        carry = torch.exp(
            start[:, :, :, None] - cumulated[:, :, None] + self.before
        )  # [B, H, N, N, K]
        state = (carry.permute(0, 1, 4, 2, 3) @ added.transpose(2, 3)).transpose(
            2, 3
        )  # [B, H, N, K, V]
        o = self.scores(q, k, log_decay, total) @ v + (q * torch.exp(total)) @ state
        return self.output(from_chunks(o), x)


class Softmax(nn.Module):
    def __init__(self, args: argparse.Namespace):
        super().__init__()
        dim, self.heads = args.dim, args.heads
        self.q, self.k, self.v, self.out = (linear(dim, dim) for _ in range(4))
        self.rotary = Rotary(dim // args.heads, args.seq_len)

    def forward(self, x: Tensor) -> Tensor:
        q = self.rotary(self.q(x).unflatten(-1, (self.heads, -1))).transpose(1, 2)
        k = self.rotary(self.k(x).unflatten(-1, (self.heads, -1))).transpose(1, 2)
        v = self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(o.transpose(1, 2).flatten(-2))


MIXERS = {"retention": Retention, "gla": Gla, "softmax": Softmax}


class Block(nn.Module):
    def __init__(self, args: argparse.Namespace):
        super().__init__()
        self.attn_norm, self.mlp_norm = RmsNorm(args.dim), RmsNorm(args.dim)
        self.attn = MIXERS[args.mixer](args)
        self.gate, self.up = linear(args.dim, args.mlp_dim), linear(args.dim, args.mlp_dim)
        self.down = linear(args.mlp_dim, args.dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class LanguageModel(nn.Module):
    def __init__(self, args: argparse.Namespace):
        super().__init__()
        self.embeddings = nn.Embedding(args.vocab, args.dim)
        nn.init.normal_(self.embeddings.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.norm = RmsNorm(args.dim)
        self.head = linear(args.dim, args.vocab)

    def forward(self, tokens: Tensor) -> Tensor:  # [B, T] -> [B, T, vocab]
        x = self.embeddings(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def load_start(args: argparse.Namespace, model: LanguageModel) -> tuple[Tensor, Tensor]:
    """Takes over the parameters of a file by --save-start; returns its inputs [B, T] and targets
    [B, T]."""
    start = torch.load(args.start, weights_only=False)  # a dict of LibTorch's; our own file
    inputs, targets = start.pop("inputs"), start.pop("targets")
    names = {
        "layers.": "blocks.",
        ".mlp.": ".",
        "_proj": "",
        "attn.gk.": "attn.decay.",
        "attn.g.": "attn.output.gate.",
        "attn.g_norm_swish_gate.": "attn.output.norm.",
        "attn.o.": "attn.out." if args.mixer == "softmax" else "attn.output.out.",
        "lm_head.": "head.",
    }
    state = {}
    for name, value in start.items():
        for theirs, here in names.items():
            name = name.replace(theirs, here)
        state[name] = value
    model.load_state_dict(state)
    return inputs, targets


def time_steps(args: argparse.Namespace) -> dict:
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    model = LanguageModel(args)
    forward = torch.compile(model) if args.compile else model
    bf16 = torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    if args.start:
        inputs, targets = load_start(args, model)
    else:
        rows = torch.randint(args.vocab, (args.batch, args.seq_len + 1))
        inputs, targets = rows[:, :-1], rows[:, 1:]
    targets = targets.flatten()
    times, losses = [], []
    for _ in range(args.warmup + args.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        with bf16:
            loss = F.cross_entropy(forward(inputs).flatten(0, 1), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        losses.append(loss.item())
        times.append((time.perf_counter() - begin) * 1e3)
    times = times[args.warmup :]
    median = statistics.median(times)
    return {
        "implementation": "pytorch " + torch.__version__,
        "mixer": args.mixer,
        "precision": args.precision,
        "compile": args.compile,
        "layers": args.layers,
        "dim": args.dim,
        "seq_len": args.seq_len,
        "batch": args.batch,
        "heads": args.heads,
        "threads": args.threads,
        "parameters": sum(p.numel() for p in model.parameters()),
        "first_losses": losses[: args.warmup],
        "median_ms": median,
        "min_ms": min(times),
        "max_ms": max(times),
        "tokens_per_s": args.batch * args.seq_len / median * 1e3,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mixer", choices=sorted(MIXERS), default="gla")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compile", action="store_true", help="needs a C++ compiler")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--mlp-dim", type=int, help="default: 256 ceil(int(dim * 4 * 2/3) / 256)")
    parser.add_argument("--vocab", type=int, default=259)
    parser.add_argument(
        "--expand-k", type=float, default=0.5, help="gla: width of q and k over dim"
    )
    parser.add_argument(
        "--expand-v", type=float, default=2.0, help="retention: width of v over dim"
    )
    parser.add_argument(
        "--chunk", type=int, default=32, help="the fastest of 16, 32, 64 and 128 at 6 x 256"
    )
    parser.add_argument("--sub-chunk", type=int, default=8, help="gla: the faster of 8 and 16")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", help="parameters and batch, of bench_train_step --save-start")
    args = parser.parse_args()
    if args.mlp_dim is None:
        args.mlp_dim = 256 * math.ceil(int(args.dim * 4 * 2 / 3) / 256)
    args.chunk = min(args.chunk, args.seq_len)
    args.sub_chunk = min(args.sub_chunk, args.chunk)
    if args.dim % args.heads or args.seq_len % args.chunk or args.chunk % args.sub_chunk:
        parser.error(
            "heads must divide dim, chunk must divide seq-len, sub-chunk must divide chunk"
        )
    return args


if __name__ == "__main__":
    print(json.dumps(time_steps(parse_arguments())))
