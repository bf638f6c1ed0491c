# ruff: noqa: T201 - a script that reports to its terminal
"""Write the reference pages generated from the code: commands and Python names.

    python tools/reference.py            writes cli.md, python.md and founding.md of docs/reference
    python tools/reference.py --check    exit code 1 where a page is not what the code says

Pages people wrote (suites, checks, metrics, columns, …) stay theirs; tests hold them to the code.
"""

import argparse
import sys
from pathlib import Path

from _reference_commands import commands_page
from _reference_founding import founding_page
from _reference_names import names_page

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"cli.md": commands_page, "founding.md": founding_page, "python.md": names_page}
"""Page of docs/reference → the function that generates it from the source folder."""


def main(arguments: list[str]) -> int:
    """Write the pages, or say which are not current."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where a page is old")
    check = parser.parse_args(arguments).check
    old = 0
    for name, write in PAGES.items():
        page, text = ROOT / "docs" / "reference" / name, write(ROOT / "src")
        if page.exists() and page.read_text(encoding="utf-8") == text:
            continue
        old += 1
        print(f"{'not current' if check else 'wrote'}: {page.relative_to(ROOT)}")
        if not check:
            page.write_text(text, encoding="utf-8")
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
