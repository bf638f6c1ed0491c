"""Text from agents and files, made safe to print.

A terminal obeys what it is sent: escape sequences can rename windows, rewrite lines above or
hide text. So whatever could be obeyed is shown as an escape instead. Some invisible but
harmless characters (joiners in emoji) are kept, because real text needs them.
"""

import re

# C0 and C1 controls and DEL; bidirectional overrides and isolates, which can make text read as
# something it is not; line and paragraph separators; lone surrogates, which no encoding takes.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, *, keep: str = "") -> str:
    """`text` on one line with every character a terminal would obey written as an escape.

    Characters in `keep` stay (such as a newline, for text that may have several lines).
    """

    def shown(match: re.Match[str]) -> str:
        character = match.group()
        if character in keep:
            return character
        return character.encode("unicode_escape").decode("ascii")

    return _OBEYED.sub(shown, text)
