"""Refuse the words that CONTRIBUTING.md replaces: `python scripts/check_words.py`.

Its last section, "Words that are not used", is the list. All tracked text files are read, except this section, the
history of the project (changelog, decision records), data and locks.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = "CONTRIBUTING.md"
HEADING = "## Words that are not used"
NOT_READ = ("scripts/check_words.py", "CHANGELOG.md", "LICENSE", "docs/adr/", "requirements/", "tests/data/")
SUFFIXES = {".md", ".py", ".sh", ".sql", ".toml", ".yaml", ".yml", ""}


def replaced_words(page: str) -> dict[str, str]:
    r"""Return the word to use for each word that is not used, from the table at the end of the page.

    >>> replaced_words(f"{HEADING}\n\n| not | but |\n|---|---|\n| fate_of, Fate | outcome |\n")
    {'fate of': 'outcome', 'Fate': 'outcome'}
    """
    table = page.partition(HEADING)[2]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")][2:]
    return {word.strip().replace("_", " "): use.strip() for words, use in rows for word in words.split(",")}


def findings(text: str, words: dict[str, str]) -> list[tuple[int, str]]:
    r"""Return (line number, word) for each occurrence; underscores and spaces between words are equal.

    >>> findings("one\nits fate_of and fate", {"fate": "outcome"})
    [(2, 'fate'), (2, 'fate')]
    """
    parts = "|".join(re.escape(word).replace("\\ ", "[ _]") for word in sorted(words, key=len, reverse=True))
    pattern = re.compile(rf"(?<![A-Za-z])(?:{parts})(?![A-Za-z])")
    return [(number, found[0]) for number, line in enumerate(text.splitlines(), 1) for found in pattern.finditer(line)]


def main() -> int:
    """Print each finding; return 1 when there is one."""
    words = replaced_words((ROOT / LIST).read_text())
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    count = 0
    for name in listed.splitlines():
        path = ROOT / name
        if name.startswith(NOT_READ) or path.suffix not in SUFFIXES or not path.is_file():
            continue
        text = path.read_text()
        for number, word in findings(text.partition(HEADING)[0] if name == LIST else text, words):
            use = words[word.replace("_", " ")]
            print(f"{name}:{number}: {word!r}: use {use!r} ({LIST})")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
