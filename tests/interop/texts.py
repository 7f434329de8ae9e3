"""Texts for comparisons of tokenizers: English, and lines of mixed Unicode."""

import pathlib
import random
import shutil
import subprocess
import unicodedata

# Characters of early Unicode versions, so that the Unicode tables of all libraries contain them.
_OLD = unicodedata.ucd_3_2_0
_EMOJI = list(range(0x1F300, 0x1F5FF)) + list(range(0x1F600, 0x1F640))
_RANGES = [
    (0x20, 0x7F), (0xA0, 0x250), (0x370, 0x530), (0x5D0, 0x5EB), (0x620, 0x6D4), (0x900, 0x970),
    (0xE01, 0xE5C), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070), (0x2100, 0x2400),
    (0x3000, 0x3100), (0x4E00, 0x9FA5), (0xAC00, 0xD7A4), (0xFB00, 0xFB50), (0xFF00, 0xFFF0),
    (0x1D400, 0x1D800), (0x20000, 0x2A6D6)]
_PIECES = [
    " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\u00a0", "\u3000", "\u2028", "\u180e",
    "\u0085", "\v", "'s", "'S", "'t", "'re", "'LL", "'d", "\u2019s", "'\u017f", "don't", "I'VE",
    "1", "23", "456", "7890", "3.14", "\u0663\u0664", "\u2167", "\u00bd", "x = y[0];", "//", "!!!",
    "...", "e\u0301", "\u0041\u030a", "\u212b", "\u1e9b\u0323", "\u0300", "\u0301\u0316", "\u1112\u1161\u11ab",
    "\uac00\u11a8", "\u0340", "the", " The", " and", "ing", "Gr\u00f6\u00dfe", "\u534a\u6e1b\u671f",
    "\u3072\u3089\u304c\u306a", "\u30ab\u30bf", "\ud55c\uad6d\uc5b4", "\u0645\u0631\u062d\u0628\u0627",
    "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0441\u043b\u043e\u0432\u043e", "\u200d", "\u0000",
    "\U0001f469\u200d\U0001f4bb", "<|", "|>", "<", "endoftext", "\ufffd"]


def english(repo):
    """Returns lines of the King James Bible if Debian's package is installed, otherwise of this repository's
    docs."""
    if shutil.which("bible"):
        text = subprocess.run(["bible", "-l100000", "gen1:1-rev22:21"], check=True,
                              capture_output=True, text=True).stdout
    else:
        text = "".join(path.read_text() for path in sorted(pathlib.Path(repo).glob("**/*.md"))
                       if ".venv" not in str(path))
    return [line + "\n" for line in text.splitlines()]


def mixed_unicode(count, seed, extra=()):
    """Returns lines of words, spaces, digits and marks of many scripts, with pieces of `extra` between
    them."""
    random_ = random.Random(seed)
    pieces = _PIECES + list(extra)
    scripts = [[c for c in map(chr, range(*bounds)) if _OLD.category(c) not in ("Cn", "Cs")]
               for bounds in _RANGES]

    def character():
        if random_.random() < 0.05:
            return chr(random_.choice(_EMOJI))
        return random_.choice(random_.choice(scripts))

    def line():
        parts = []
        for _ in range(random_.randrange(1, 30)):
            kind = random_.random()
            if kind < 0.5:
                parts.append(random_.choice(pieces))
            elif kind < 0.8:
                parts.append(character())
            else:
                parts.append(" " + "".join(character() for _ in range(random_.randrange(1, 6))))
        return "".join(parts)

    return [line() for _ in range(count)]
