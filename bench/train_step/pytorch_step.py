"""Times training steps of a small language model in plain PyTorch on the CPU. compare.py compares
halflife with this program.

    .venv-compare/bin/python bench/train_step/pytorch_step.py --mixer gla --layers 6 --dim 256

PyTorch runs eagerly, or under torch.compile with --compile. --precision bf16 means autocast. The model
is the same as halflife's (pre-norm blocks, RMSNorm, SwiGLU, untied head) with the mixers of eager/. The
optimizer is fused AdamW with gradient clipping. Prints one JSON line with the losses of the --warmup
steps and the median time of the --steps steps after them. --start loads halflife's parameters and batch
from a file of bench_train_step --save-start. Both programs use the same names of parameters.

Shapes: B batch, T seq_len, D model_dim.
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

from eager import MIXERS
from eager.layers import RmsNorm, linear


class SwiGlu(nn.Module):
    def __init__(self, dim: int, width: int):
        super().__init__()
        self.gate_proj, self.up_proj = linear(dim, width), linear(dim, width)
        self.down_proj = linear(width, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__()
        self.attn_norm, self.mlp_norm = RmsNorm(args.dim), RmsNorm(args.dim)
        self.attn = MIXERS[args.mixer](args, layer)
        self.mlp = SwiGlu(args.dim, args.mlp_dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    def __init__(self, args: argparse.Namespace):
        super().__init__()
        self.embeddings = nn.Embedding(args.vocab, args.dim)
        nn.init.normal_(self.embeddings.weight, std=0.02)
        self.layers = nn.ModuleList(Block(args, layer) for layer in range(args.layers))
        self.norm = RmsNorm(args.dim)
        self.lm_head = linear(args.dim, args.vocab)

    def forward(self, tokens: Tensor) -> Tensor:  # [B, T] -> [B, T, vocab]
        x = self.embeddings(tokens)
        for block in self.layers:
            x = block(x)
        return self.lm_head(self.norm(x))


def load_start(args: argparse.Namespace, model: LanguageModel) -> tuple[Tensor, Tensor]:
    """Loads the parameters of a file of --save-start. Returns its inputs [B, T] and targets [B, T]."""
    start = torch.load(args.start, weights_only=False)  # the file contains a dict that LibTorch wrote
    inputs, targets = start.pop("inputs"), start.pop("targets")
    model.load_state_dict(dict(start.items()))
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
    times, processor_times, losses = [], [], []
    for _ in range(args.warmup + args.steps):
        begin, processor_begin = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=False)
        with bf16:
            loss = F.cross_entropy(forward(inputs).flatten(0, 1), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        losses.append(loss.item())
        times.append((time.perf_counter() - begin) * 1e3)
        processor_times.append((time.process_time() - processor_begin) * 1e3)
    times, processor_times = times[args.warmup :], processor_times[args.warmup :]
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
        "median_processor_ms": statistics.median(processor_times),
        "min_ms": min(times),
        "max_ms": max(times),
        "tokens_per_s": args.batch * args.seq_len / median * 1e3,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mixer", choices=list(MIXERS), default="gla")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compile", action="store_true", help="use torch.compile, which needs a C++ compiler")
    parser.add_argument("--steps", type=int, default=10, help="timed steps (default: 10)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--mlp-dim", type=int, help="default: 256 ceil(int(dim * 4 * 2/3) / 256)")
    parser.add_argument("--vocab", type=int, default=259)
    parser.add_argument(
        "--expand-k", type=float, default=0.5, help="gla: width of q and k divided by dim (default: 0.5)"
    )
    parser.add_argument(
        "--expand-v", type=float, default=2.0, help="retention: width of v divided by dim (default: 2)"
    )
    parser.add_argument(
        "--chunk",
        type=int,
        default=32,
        help="tokens per chunk (default: 32, the fastest of 16, 32, 64 and 128 with 6 layers and dim 256)",
    )
    parser.add_argument(
        "--sub-chunk",
        type=int,
        default=8,
        help="gla and kda: tokens per sub-chunk (default: 8, which is faster than 16)",
    )
    parser.add_argument("--warmup", type=int, default=3, help="steps before the timed ones (default: 3)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--start", metavar="FILE", help="parameters and batch that bench_train_step --save-start wrote"
    )
    args = parser.parse_args()
    if args.mlp_dim is None:
        args.mlp_dim = 256 * math.ceil(int(args.dim * 4 * 2 / 3) / 256)
    args.chunk = min(args.chunk, args.seq_len)
    args.sub_chunk = min(args.sub_chunk, args.chunk)
    if args.seq_len % args.chunk or args.chunk % args.sub_chunk:
        parser.error("--chunk must divide --seq-len, and --sub-chunk must divide --chunk.")
    return args


if __name__ == "__main__":
    print(json.dumps(time_steps(parse_arguments())))
