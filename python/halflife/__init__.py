"""halflife in Python: load trained models, score and generate text, read datasets and metrics.

    import halflife
    model = halflife.load("runs/first")            # a run, a step, or a Hugging Face folder
    model.score(["In the beginning"])              # [array of N - 1 log-probabilities]
    model.generate("In the beginning", max_tokens=50, temperature=0.8)

Arrays are numpy arrays. The module does not need Python's torch.
"""

from ._core import Batch, Batches, Dataset, Error, Model, Tokenizer, load, load_tokenizer, read_metrics

__all__ = ["Batch", "Batches", "Dataset", "Error", "Model", "Tokenizer", "load", "load_tokenizer",
           "read_metrics"]
