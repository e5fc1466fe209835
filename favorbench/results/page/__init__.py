"""A run as one page that can be sent: HTML without a request, that reads without its script, below 1 MB."""

from favorbench.results.page.document import LIMIT, Page, only_heads, page, write_page

__all__ = ["LIMIT", "Page", "only_heads", "page", "write_page"]
