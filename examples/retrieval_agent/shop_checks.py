"""A check of the shop's own: an answer that quotes a document names one that exists."""

import re
from typing import Any

from shop_tools import INDEX


def names_its_source(context: Any) -> tuple[bool, str]:
    """Whether the answer says where it was read, and the place exists and was read."""
    source = re.search(r"\(Source: ([\w-]+\.md)\)", context.answer)
    if source is None:
        return False, "the answer names no source"
    if source[1] not in INDEX.texts:
        return False, f"there is no document {source[1]}"
    read = {d.id for span in context.trace.spans for d in span.documents or ()}
    return source[1] in read, f"{source[1]} was {'' if source[1] in read else 'not '}read"
