"""A run, or two compared, as one page that can be sent: no request, reads without its script, below 1 MB."""

from favorbench.results.page.comparison import comparison_page, write_comparison
from favorbench.results.page.document import LIMIT, Page, only_heads, page, write_page

__all__ = ["LIMIT", "Page", "comparison_page", "only_heads", "page", "write_comparison", "write_page"]
