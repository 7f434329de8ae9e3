"""The base class of the tests of halflife import --layout. A folder with the authors' tensor names is
imported and scored, and the scores are compared with a forward in fp64.

    class Models(AuthorsTest):
        def test_one(self):
            self.check(weights, config, layout="d2d", log_probs=lambda ids: ...)
"""

import json
import pathlib
import sys

from engine import EngineTest, halflife

try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"SKIPPED: {pathlib.Path(sys.argv[0]).stem}: {error} (launch/setup --tests)")
    sys.exit(77)

# halflife computes in fp32 and the tests in fp64. The difference is the rounding of logits of order 10 in two
# layers.
TOLERANCE = 2e-5
VOCAB, DIM, HEADS, LAYERS, WIDTH, POSITIONS = 61, 32, 4, 2, 48, 256
LENGTHS = (2, 29, 64, 65, 200)


def layer_norm(x, weights, name, eps=1e-5):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weights[name + ".weight"], weights[name + ".bias"],
                                          eps)


def linear(x, weights, name):
    return torch.nn.functional.linear(x, weights[name + ".weight"], weights.get(name + ".bias"))


def next_token_log_probs(logits, ids):
    return logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]


def random_weights(shapes, seed=6):
    """Returns random weights of these shapes. Weights of norms are close to 1."""
    generator = torch.Generator().manual_seed(seed)
    weights = {name: 0.2 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for name, tensor in weights.items():
        if name.endswith("weight") and tensor.dim() == 1:
            tensor += 1
    return weights


def sequences(lengths=LENGTHS, vocab=VOCAB):
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, vocab, (n,), generator=generator).tolist() for n in lengths]


class AuthorsTest(EngineTest):
    def make_folder(self, weights, config):
        folder = self.dir / "original"
        folder.mkdir()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def import_folder(self, weights, config, layout, code=0):
        folder = self.make_folder(weights, config)
        return halflife("import", "--from", folder, "--layout", layout, "--out", self.dir / "run",
                             code=code)

    def score(self, model, ids, *more):
        (self.dir / "ids.json").write_text(json.dumps(ids))
        halflife("score", "--model", model, "--tokens", self.dir / "ids.json", "--out",
                      self.dir / "scores.jsonl", "--threads", 1, *more)
        lines = (self.dir / "scores.jsonl").read_text().splitlines()
        return [torch.tensor(json.loads(line)["logprobs"], dtype=torch.float64) for line in lines]

    def weights_of(self, run):
        """Returns the parameters of a run's newest step, in fp64, with halflife's names."""
        files = sorted((run / "ckpt").glob("step_*/rank_00000.safetensors"))
        weights = {name.removeprefix("main/"): tensor.double()
                   for name, tensor in load_file(files[-1]).items() if name.startswith("main/")}
        self.assertFalse([name for name in weights if "@" in name], "a run of one rank has parts of tensors")
        return weights

    def check_scores(self, run, ids, want, *more):
        """Checks that `score` gives these log-probabilities. `more` are its options."""
        pairs = zip(self.score(run, ids, *more), want, strict=True)
        # The maximum of a tensor is NaN if an element is NaN. Python's max() may ignore a NaN.
        worst = float(torch.stack([(got - expected).abs().max() for got, expected in pairs]).max())
        print(f"{self.id().rsplit('.', 1)[-1]}: largest difference {worst:.1e}", file=sys.stderr)
        self.assertLess(worst, TOLERANCE)

    def check(self, weights, config, layout, log_probs, lengths=LENGTHS):
        """Imports the weights in a new folder, and compares `score` with log_probs(weights in fp64, ids)."""
        self.tearDown()
        self.setUp()
        self.import_folder(weights, config, layout)
        wide = {name: tensor.double() for name, tensor in weights.items()}
        ids = sequences(lengths)
        self.check_scores(self.dir / "run", ids, [log_probs(wide, sequence) for sequence in ids])
