"""Pages whose tables a program writes, between marks that a reader does not see."""

from __future__ import annotations


def put_into(page: str, content: str, name: str) -> str:
    """A page with other content between two marks.

    Args:
        page: Markdown with ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``.
        content: What comes between.
        name: Of the marks.

    Raises:
        ValueError: The page lacks the marks.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page lacks '{begin}' followed by '{end}'")
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"
