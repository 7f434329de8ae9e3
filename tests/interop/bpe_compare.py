"""Compares halflife's byte-level BPE with the tokenizers library. Ids and text must be equal, line by line,
with `--special-tokens plain` and `parse`.

    bpe_compare.py TOKENIZER_TOOL REPOSITORY [NUM_LINES]

Trains small tokenizers of all common kinds, and compares them on English text and on mixed Unicode.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

import texts

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
POSSESSIVE = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
              r"|\s*[\r\n]|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
EOS = "<|endoftext|>"


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(add_prefix_space=False, use_regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


def kinds():
    """Returns {name: (pre-tokenizer, normalizer, added tokens, changes of the JSON)}."""
    special = [AddedToken("<|im_start|>", special=True, normalized=False),
               AddedToken("<|im_end|>", special=True, normalized=False)]
    return {
        "gpt2": (byte_level(use_regex=True), None, [], {}),
        "llama3": (pre_tokenizers.Sequence([split(CL100K), byte_level()]), None, special,
                   {"ignore_merges": True, "pair_strings": True}),
        "qwen2": (pre_tokenizers.Sequence([split(QWEN2), byte_level()]), normalizers.NFC(), special +
                  [AddedToken("<tool>", special=False, normalized=False),
                   AddedToken("\u1112\u1161\u11ab", special=False, normalized=True)], {}),
        "possessive": (pre_tokenizers.Sequence([split(POSSESSIVE), byte_level()]), None, special, {}),
        "o200k": (pre_tokenizers.Sequence([split(O200K, "removed", True), byte_level()]), None,
                  special, {"ignore_merges": True}),
        "deepseek": (pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"),
                                              split(DEEPSEEK), byte_level()]), None, special, {}),
        "digits": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                            byte_level(use_regex=True)]), None, special, {}),
        "strips": (byte_level(add_prefix_space=True, use_regex=True), normalizers.NFC(),
                   [AddedToken("<mask>", special=True, lstrip=True, normalized=False),
                    AddedToken("<gap>", special=False, rstrip=True, normalized=False),
                    AddedToken("<both>", special=False, lstrip=True, rstrip=True, normalized=True),
                    AddedToken("   ", special=False, normalized=False),
                    AddedToken("<gap><gap>", special=False, normalized=False)], {}),
        "prefix_each": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False),
                                                 byte_level(add_prefix_space=True)]), None, [], {}),
    }


def make(folder, kind, corpus):
    pre_tokenizer, normalizer, added, changes = kind
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=4000, special_tokens=[EOS], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_tokens(added)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", special_tokens=[(EOS, tokenizer.token_to_id(EOS))])
    # halflife must ignore the truncation length of the file.
    tokenizer.enable_truncation(8)
    spec = json.loads(tokenizer.to_str())
    spec["model"]["ignore_merges"] = changes.get("ignore_merges", False)
    if changes.get("pair_strings"):
        spec["model"]["merges"] = [" ".join(pair) for pair in spec["model"]["merges"]]
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False))
    return spec, [token.content for token in added]


def reference_of(spec, special_tokens):
    """Returns the library's tokenizer. For plain text, it does not know the name of eos."""
    added = [token for token in spec["added_tokens"]
             if special_tokens == "parse" or token["content"] != EOS]
    return Tokenizer.from_str(json.dumps(dict(spec, truncation=None, added_tokens=added)))


def compare(name, tool, folder, spec, special_tokens, lines):
    name = f"{name}, {special_tokens}"
    reference = reference_of(spec, special_tokens)
    source, result = folder / "lines", folder / "ids"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    subprocess.run([tool, "encode", folder / "tokenizer.json", source, result, special_tokens],
                   check=True)
    num_ids, differences = 0, []
    with open(result) as file:
        for line, mine in zip(lines, map(json.loads, file), strict=True):
            wanted = reference.encode(line, add_special_tokens=False).ids
            text = reference.decode(wanted, skip_special_tokens=True)
            num_ids += len(wanted)
            if wanted != mine["ids"] or text != mine["text"]:
                differences.append((line, wanted, mine))
    print(f"{name}: {len(lines)} lines, {num_ids} ids, {len(differences)} differences", flush=True)
    for line, wanted, mine in differences[:3]:
        print(f"  {line!r}\n    wanted {[reference.id_to_token(i) for i in wanted]}\n"
              f"    found  {[reference.id_to_token(i) for i in mine['ids']]}\n    text {mine['text']!r}")
    return len(differences)


def main():
    tool, repository = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 10000
    english = texts.english(repository)
    differences = 0
    with tempfile.TemporaryDirectory() as temporary:
        for name, kind in kinds().items():
            folder = pathlib.Path(temporary) / name
            spec, added = make(folder, kind, english[:4000] + texts.mixed_unicode(2000, 1))
            lines = texts.mixed_unicode(count, 2, added + [" " + token + " " for token in added] +
                                        [EOS])
            for special_tokens in ("plain", "parse"):
                differences += compare(f"{name}, mixed Unicode", tool, folder, spec,
                                       special_tokens, lines)
            sample = english if name in ("gpt2", "llama3") else english[::20]
            differences += compare(f"{name}, English", tool, folder, spec, "plain",
                                   sample + ["".join(english[:2000])])
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
